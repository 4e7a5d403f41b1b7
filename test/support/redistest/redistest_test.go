package redistest_test

import (
	"net"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/weir-proxy/weir/test/support/redistest"
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

func TestClockCanBeWrong(t *testing.T) {
	c := redistest.NewClock(t)
	s := c.Start()
	for _, off := range []time.Duration{0, time.Hour, -time.Hour} {
		c.Set(off)
		seconds, _, _ := strings.Cut(s.Do("TIME"), "\n")
		n, err := strconv.ParseInt(seconds, 10, 64)
		if is := time.Until(time.Unix(n, 0)); err != nil || (is-off).Abs() > 10*time.Second {
			t.Errorf("the clock is off by %v, not by %v: %v", is, off, err)
		}
	}
}

// A full disk makes Redis refuse changes, a hanging disk makes it answer nothing, and both end.
func TestDiskCanBeFullAndHang(t *testing.T) {
	d := redistest.NewDisk(t)
	s := d.Start("--appendonly", "yes", "--appendfsync", "always")
	d.Hang()
	answered := make(chan string)
	go func() { answered <- s.Do("SET", "k", "v") }()
	select {
	case got := <-answered:
		t.Fatalf("while the disk hangs SET says %s", got)
	case <-time.After(200 * time.Millisecond):
	}
	d.Mend()
	if got := <-answered; got != "+OK" {
		t.Errorf("SET says %s", got)
	}
	s = d.Start("--appendonly", "yes", "--appendfsync", "everysec")
	d.Fill()
	await(t, "-MISCONF", s)
	d.Mend()
	await(t, "+OK", s)
}

// await sets a key until the answer begins like this.
func await(t *testing.T, want string, s *redistest.Server) {
	t.Helper()
	var got string
	for end := time.Now().Add(10 * time.Second); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		if got = s.Do("SET", "k", "v"); strings.HasPrefix(got, want) {
			return
		}
	}
	t.Errorf("SET says %s, want %s", got, want)
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
