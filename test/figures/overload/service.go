package main

import (
	"net/http"
	"sync"
	"time"
)

const (
	// places are how many requests the service works on at once, fewer in the second phase. Each
	// takes a time; others queue.
	places, fewer = 40, 16
	takes         = 100 * time.Millisecond
	// capacity is in requests a second.
	capacity = places * 10
)

// service works on a fixed number of requests at once, in the order of their arrival. Like most
// services it goes on with a request whose caller has gone.
type service struct {
	mu     sync.Mutex
	free   int
	queued []chan struct{}
}

func newService() *service { return &service{free: places} }

// ServeHTTP implements http.Handler.
func (s *service) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	s.enter()
	time.Sleep(takes)
	s.change(1)
	w.WriteHeader(http.StatusOK)
}

func (s *service) enter() {
	s.mu.Lock()
	if s.free > 0 {
		s.free--
		s.mu.Unlock()
		return
	}
	turn := make(chan struct{})
	s.queued = append(s.queued, turn)
	s.mu.Unlock()
	<-turn
}

// change gives places back, or takes some away, and lets the first in the queue have them.
func (s *service) change(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.free += n
	for s.free > 0 && len(s.queued) > 0 {
		s.free--
		close(s.queued[0])
		s.queued = s.queued[1:]
	}
}
