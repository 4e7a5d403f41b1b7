package redistest_test

import (
	"testing"

	"github.com/weir-proxy/weir/test/redistest"
)

func TestServerForgetsWhenKilled(t *testing.T) {
	s := redistest.Start(t)
	if got := s.Do("SET", "k", "v"); got != "+OK" {
		t.Fatalf("SET: %s", got)
	}
	s.Restart()
	if got := s.Do("EXISTS", "k"); got != ":0" {
		t.Errorf("after a crash EXISTS says %s", got)
	}
}

func TestServerKeepsWhatOptionsSay(t *testing.T) {
	s := redistest.Start(t, "--appendonly", "yes", "--appendfsync", "always")
	s.Do("SET", "k", "v")
	s.Restart()
	if got := s.Do("EXISTS", "k"); got != ":1" {
		t.Errorf("after a crash EXISTS says %s", got)
	}
}

func TestPauseAndResume(t *testing.T) {
	s := redistest.Start(t)
	s.Pause()
	s.Resume()
	if got := s.Do("PING"); got != "+PONG" {
		t.Errorf("PING says %s", got)
	}
}
