package app_test

import (
	"bufio"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/weir-proxy/weir/test/support/redistest"
)

// An idle replica sends Redis at most four commands a second. Its scripts run few commands. A
// waiting node only adds the reports about itself. On a busy machine the work after the start may
// last into the first period, so that the best of three periods counts.
func TestAnIdleReplicaSendsFewCommands(t *testing.T) {
	t.Parallel()
	const patience = 10 * time.Second
	server := redistest.Start(t)
	s := bare(t)
	s.DataDir, s.RedisURL = "", server.URL()
	p := startWith(t, s, slog.New(slog.DiscardHandler))
	p.until("/readyz/store", http.StatusOK)
	if a := p.do("PUT", "/v1/policyset", []byte(consumerSet), "If-Match", "*"); a.status != http.StatusOK {
		t.Fatalf("%s", a.body)
	}
	for _, nodes := range []bool{false, true} {
		if nodes {
			<-p.poll(0)
		}
		time.Sleep(time.Second) // On a machine that does little else, the work after the start is over.
		perSecond := 4.0
		if nodes {
			perSecond = 5
		}
		mostSent, mostRun := int(perSecond*patience.Seconds()), int(80*patience.Seconds())
		var idle bool
		for period := 0; period < 3 && !idle; period++ {
			var polled <-chan answer // Without a node nothing is ever received.
			if nodes {
				polled = p.poll(1)
			}
			sent, run := count(t, server, patience)
			select {
			case a := <-polled:
				t.Fatalf("the node waits no longer: it is answered %d %s", a.status, a.body)
			default:
			}
			t.Logf("with a node %v: in %v %d commands of at most %d: %v; its scripts run %d of at most %d: %v",
				nodes, patience, sum(sent), mostSent, sent, sum(run), mostRun, run)
			idle = sum(sent) <= mostSent && sum(run) <= mostRun
		}
		if !idle {
			t.Errorf("with a node %v: the replica is never idle", nodes)
		}
	}
}

func sum(counts map[string]int) (n int) {
	for count := range maps.Values(counts) {
		n += count
	}
	return n
}

// count counts the commands that a server gets, and the commands that scripts run there, by their
// names.
func count(t *testing.T, server *redistest.Server, during time.Duration) (sent, run map[string]int) {
	t.Helper()
	conn, err := net.Dial("tcp", server.Addr())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := fmt.Fprint(conn, "MONITOR\r\n"); err != nil {
		t.Fatal(err)
	}
	_ = conn.SetReadDeadline(time.Now().Add(during)) // The connection has a deadline.
	sent, run = map[string]int{}, map[string]int{}
	for lines := bufio.NewScanner(conn); lines.Scan(); {
		_, rest, ok := strings.Cut(lines.Text(), "] \"")
		if !ok {
			continue // The answer to MONITOR.
		}
		name, _, _ := strings.Cut(rest, "\"")
		if strings.Contains(lines.Text(), " lua] ") {
			run[strings.ToLower(name)]++
		} else {
			sent[strings.ToLower(name)]++
		}
	}
	return sent, run
}
