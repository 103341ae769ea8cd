// The peer of benchmarks/peers.py that speaks chunks: built inside of a checkout of natsChunked.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"natsChunked/pkg/chunks"
)

func main() {
	nc, err := nats.Connect(os.Args[2])
	if err != nil {
		panic(err)
	}
	in := bufio.NewReader(os.Stdin)
	if os.Args[1] == "--receive" {
		asm := chunks.NewAssembler(nc, 30*time.Second, func(id string, data []byte) {
			out, _ := json.Marshal(map[string]int{"size": len(data), "base": 0, "peak": 0})
			nc.Publish("back", out)
		})
		defer asm.Close()
		asm.Subscribe("payload")
		nc.Flush()
		fmt.Println("ready")
		in.ReadString('\n')
		return
	}
	back := make(chan *nats.Msg, 16)
	nc.ChanSubscribe("back", back)
	nc.Flush()
	fmt.Println("ready")
	pub := chunks.NewPublisher(nc, 512*1024)
	var data []byte
	for {
		line, err := in.ReadString('\n')
		if err != nil {
			return
		}
		size, _ := strconv.Atoi(strings.TrimSpace(line))
		if len(data) != size {
			data = make([]byte, size)
			for i := range data {
				data[i] = byte(i * 7)
			}
		}
		began := time.Now()
		pub.PublishBytes("payload", data)
		nc.Flush()
		answer := map[string]any{}
		select {
		case m := <-back:
			json.Unmarshal(m.Data, &answer)
		case <-time.After(60 * time.Second):
			answer["size"] = -1
		}
		answer["seconds"] = time.Since(began).Seconds()
		out, _ := json.Marshal(answer)
		fmt.Println(string(out))
	}
}
