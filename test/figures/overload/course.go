package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"slices"
	"sync"
	"time"
)

const (
	// offered is in requests a second, deadline is how long a caller waits.
	offered  = 3 * capacity
	deadline = time.Second
)

// classes are the classes of requests. Each has of20 of twenty requests.
var classes = []struct {
	name string
	of20 int
}{{"critical", 1}, {"normal", 3}, {"reads", 6}, {"bulk", 10}}

// classOf returns the class of the i-th request.
func classOf(i int) int {
	place, class := i*7919/3%20, 0
	for place >= classes[class].of20 {
		place -= classes[class].of20
		class++
	}
	return class
}

// course is the outcome of the requests to one contestant, by class and by the second in which they
// were sent.
type course struct {
	name  string
	phase time.Duration
	conditions

	mu         sync.Mutex
	sent, good [][]int
	// took are the latencies of good answers of the first class.
	took []time.Duration
}

func newCourse(name string, phase time.Duration) *course {
	c := &course{name: name, phase: phase}
	for range classes {
		seconds := int(3*phase/time.Second) + 1
		c.sent, c.good = append(c.sent, make([]int, seconds)), append(c.good, make([]int, seconds))
	}
	return c
}

// run sends requests at their times, even if earlier requests have no answer, while the capacity
// steps.
func (c *course) run(ctx context.Context, url string, s *service) {
	transport := &http.Transport{MaxIdleConnsPerHost: 4 * offered, DisableCompression: true}
	defer transport.CloseIdleConnections()
	client := &http.Client{Transport: transport, Timeout: deadline}
	for i, n := range []int{fewer - places, places - fewer} {
		step := time.AfterFunc(time.Duration(i+1)*c.phase, func() { s.change(n) })
		defer step.Stop()
	}
	var open sync.WaitGroup
	defer open.Wait()
	begin := time.Now()
	for i := 0; ctx.Err() == nil; i++ {
		at := time.Duration(i) * time.Second / offered
		if at >= 3*c.phase {
			return
		}
		time.Sleep(time.Until(begin.Add(at)))
		c.late = append(c.late, time.Since(begin.Add(at)))
		open.Go(func() { c.send(ctx, client, url, i, int(time.Since(begin)/time.Second)) })
	}
}

// send sends one request, and counts it by the second in which it was sent.
func (c *course) send(ctx context.Context, client *http.Client, url string, i, second int) {
	class := classOf(i)
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url+"/", nil)
	if err != nil {
		return
	}
	request.Header.Set("x-class", classes[class].name)
	request.Header.Set("x-key", fmt.Sprint("caller-", i%1009))
	begin, good := time.Now(), false
	if response, err := client.Do(request); err == nil {
		_, err = io.Copy(io.Discard, response.Body)
		response.Body.Close()
		good = err == nil && response.StatusCode == http.StatusOK
	}
	took := time.Since(begin)
	c.mu.Lock()
	defer c.mu.Unlock()
	second = min(second, len(c.sent[class])-1)
	c.sent[class][second]++
	if good {
		c.good[class][second]++
		if class == 0 {
			c.took = append(c.took, took)
		}
	}
}

// goodput returns the share of the service's capacity in a phase that was answered in time, without
// the first third of the phase.
func (c *course) goodput(phase int) float64 {
	from, to := c.settled(phase)
	sum, can := 0, capacity
	if phase == 1 {
		can = can * fewer / places
	}
	for class := range classes {
		for _, n := range c.good[class][from:to] {
			sum += n
		}
	}
	return float64(sum) / float64(can*(to-from))
}

func (c *course) settled(phase int) (from, to int) {
	seconds := int(c.phase / time.Second)
	return phase*seconds + (seconds+2)/3, (phase + 1) * seconds
}

// served returns the share of a class's requests that was answered in time.
func (c *course) served(class int) float64 {
	sent, good := 0, 0
	for i := range c.sent[class] {
		sent += c.sent[class][i]
		good += c.good[class][i]
	}
	return float64(good) / float64(max(sent, 1))
}

// p99 returns the latency of the first class that one good answer in a hundred exceeds.
func (c *course) p99() time.Duration {
	if len(c.took) == 0 {
		return 0
	}
	slices.Sort(c.took)
	return c.took[len(c.took)*99/100]
}
