package redistest_test

import (
	"net"
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

func TestClusterMovesSlots(t *testing.T) {
	c := redistest.StartCluster(t, 3, true)
	slot := c.Slot("k")
	from := c.Primary(slot)
	if got := c.Primaries[from].Do("SET", "k", "v"); got != "+OK" {
		t.Fatalf("SET: %s", got)
	}
	to := c.Primaries[(from+1)%3]
	c.MoveSlot(slot, c.Primaries[from], to)
	if got := to.Do("GET", "k"); got != "v" {
		t.Errorf("where the slot is now GET says %s", got)
	}
}

func TestSentinelsKnowThePrimary(t *testing.T) {
	s := redistest.StartSentinels(t)
	host, port, _ := net.SplitHostPort(s.Primary.Addr())
	if got := s.Watchers[1].Do("SENTINEL", "GET-MASTER-ADDR-BY-NAME", redistest.MasterName); got != host+"\n"+port {
		t.Errorf("a Sentinel says %q", got)
	}
}
