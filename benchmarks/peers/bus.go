// The peer of benchmarks/peers.py that speaks the bus: built inside of a checkout of airs-ibusnats.
package main

import (
	"bufio"
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	ibus "github.com/untillpro/airs-ibus"
	ibusnats "github.com/untillpro/airs-ibusnats"
)

func handle(ctx context.Context, sender interface{}, request ibus.Request) {
	if request.Resource == "single" {
		ibus.SendResponse(ctx, sender, ibus.Response{ContentType: "application/json", StatusCode: 200, Data: []byte(`{"a":1}`)})
		return
	}
	count, _ := strconv.Atoi(request.Query["count"][0])
	size, _ := strconv.Atoi(request.Query["size"][0])
	go func() {
		rs := ibus.SendParallelResponse2(ctx, sender)
		rs.StartArraySection("numbers", nil)
		data := make([]byte, size)
		for i := 0; i < count; i++ {
			binary.BigEndian.PutUint64(data, uint64(i))
			if err := rs.SendElement("", data); err != nil {
				rs.Close(err)
				return
			}
		}
		rs.Close(nil)
	}()
}

func main() {
	log.SetOutput(io.Discard)
	s := &ibusnats.Service{NATSServers: ibusnats.NATSServers{os.Args[2]}, Queues: ibusnats.QueuesPartitionsMap{"bench": 1}}
	if os.Args[1] == "--serve" {
		s.CurrentQueueName = "bench"
	}
	ibusnats.Join()
	ibus.RequestHandler = handle
	ctx, err := s.Start(context.Background())
	if err != nil {
		panic(err)
	}
	in := bufio.NewReader(os.Stdin)
	fmt.Println("ready")
	for {
		line, err := in.ReadString('\n')
		if err != nil {
			return
		}
		var what string
		var count, extra int
		fmt.Sscan(strings.TrimSpace(line), &what, &count, &extra)
		began := time.Now()
		got := 0
		if what == "single" {
			var wg sync.WaitGroup
			var mu sync.Mutex
			for w := 0; w < extra; w++ {
				wg.Add(1)
				go func() {
					defer wg.Done()
					for i := 0; i < count/extra; i++ {
						resp, _, _, err := ibus.SendRequest2(ctx, ibus.Request{QueueID: "bench", Resource: "single"}, ibus.DefaultTimeout)
						if err == nil && resp.StatusCode == 200 {
							mu.Lock()
							got++
							mu.Unlock()
						}
					}
				}()
			}
			wg.Wait()
		} else {
			_, sections, secErr, err := ibus.SendRequest2(ctx, ibus.Request{QueueID: "bench", Resource: "elements",
				Query: map[string][]string{"count": {strconv.Itoa(count)}, "size": {strconv.Itoa(extra)}}}, ibus.DefaultTimeout)
			if err != nil {
				panic(err)
			}
			for sec := range sections {
				arr := sec.(ibus.IArraySection)
				for {
					el, ok := arr.Next()
					if !ok {
						break
					}
					if binary.BigEndian.Uint64(el) == uint64(got) {
						got++
					}
				}
			}
			if *secErr != nil {
				panic(*secErr)
			}
		}
		out, _ := json.Marshal(map[string]interface{}{"seconds": time.Since(began).Seconds(), "got": got})
		fmt.Println(string(out))
	}
}
