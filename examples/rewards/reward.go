// A reward program in Go that works on many lines at once: 1 for the ground truth in the last \boxed{..}.
//
//	go build -o reward examples/rewards/reward.go
//
//	exec: ./reward
//	max_in_flight: 64
//
// Each line has a goroutine of its own, so that scores that are waited for (of a service, of a database) come together;
// answers may come in any order.
package main

import (
	"bufio"
	"encoding/json"
	"io"
	"log"
	"os"
	"regexp"
	"sync"
)

type row struct {
	ID          string `json:"id"`
	Response    string `json:"response"`
	GroundTruth string `json:"ground_truth"`
}

type answer struct {
	ID     string  `json:"id"`
	Score  float64 `json:"score"`
	Status string  `json:"status"`
	Detail string  `json:"detail,omitempty"`
}

var box = regexp.MustCompile(`\\boxed\{([^{}]*)\}`)

func score(line []byte) answer {
	var r row
	if err := json.Unmarshal(line, &r); err != nil {
		return answer{ID: r.ID, Status: "error", Detail: err.Error()}
	}
	a := answer{ID: r.ID, Status: "ok"}
	if all := box.FindAllStringSubmatch(r.Response, -1); len(all) > 0 && all[len(all)-1][1] == r.GroundTruth {
		a.Score = 1
	}
	return a
}

func main() {
	var lines = bufio.NewReader(os.Stdin)
	var out = json.NewEncoder(os.Stdout) // unbuffered, one line for each value
	var lock sync.Mutex
	var all sync.WaitGroup
	for {
		line, err := lines.ReadBytes('\n')
		if len(line) > 0 {
			all.Add(1)
			go func() {
				defer all.Done()
				a := score(line)
				lock.Lock()
				defer lock.Unlock()
				if err := out.Encode(a); err != nil {
					log.Fatal(err)
				}
			}()
		}
		if err == io.EOF {
			break
		} else if err != nil {
			log.Fatal(err)
		}
	}
	all.Wait()
}
