CREATE MATERIALIZED VIEW top_customers
COMMENT 'What each customer has ordered so far.'
AS SELECT customer, name, region, COUNT(*) AS orders, SUM(cents) AS cents
FROM orders
GROUP BY customer, name, region;
