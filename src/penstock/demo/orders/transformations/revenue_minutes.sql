-- An order may be ten minutes late; then its minute is closed, and its sum is final.
CREATE STREAMING TABLE revenue_minutes
COMMENT 'Revenue of each region and minute, once the minute is closed.'
AS SELECT window(ordered, '1 minute').start AS minute, region, SUM(cents) AS cents, COUNT(*) AS orders
FROM STREAM orders WATERMARK ordered DELAY OF INTERVAL 10 MINUTES
GROUP BY window(ordered, '1 minute'), region;
