package app_test

import (
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/weir-proxy/weir/shared/match"
	"github.com/weir-proxy/weir/test/support/logtest"
	"github.com/weir-proxy/weir/test/support/redistest"
)

// node is an Envoy in the view of a control plane: it polls, and reports its version.
type node struct {
	version, mark string
}

// poll asks for news and takes a snapshot in, whose policy's quota it returns; 0 if there is
// nothing new.
func (n *node) poll(p *plane) int64 {
	p.t.Helper()
	path := "/node/v1/snapshot?node=n&boot=1&wait=1s&after=" + n.version + "&applied=" + n.version
	if n.mark != "" {
		path += "&mark=" + n.mark + "&applied_mark=" + n.mark
	}
	a := p.do("GET", path, nil)
	if a.status == http.StatusNoContent {
		return 0
	}
	if a.status != http.StatusOK || a.header.Get("Weir-Version") == "" {
		p.t.Fatalf("the poll is answered %d %s", a.status, a.body)
	}
	n.version, n.mark = a.header.Get("Weir-Version"), a.header.Get("Weir-Mark")
	return quotaOf(p.t, a.body)
}

// quotaOf is the quota of the only policy of a snapshot.
func quotaOf(t *testing.T, snapshot []byte) int64 {
	t.Helper()
	var index match.Index
	if err := index.Load(snapshot); err != nil {
		t.Fatal(err)
	}
	return index.Limit(0).Params.Burst
}

// backup copies the files of a Redis; restore puts them back into a Redis that is down.
func backup(t *testing.T, server *redistest.Server, dir string) (restore func()) {
	t.Helper()
	if answer := server.Do("SAVE"); !strings.Contains(answer, "OK") {
		t.Fatalf("SAVE: %s", answer)
	}
	kept, err := os.ReadFile(filepath.Join(dir, "dump.rdb"))
	if err != nil {
		t.Fatal(err)
	}
	return func() {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, "dump.rdb"), kept, 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// A backup is restored, and a document applied before any node has polled: it gets the number of a
// version that was lost, and the nodes that hold that one get it all the same.
func TestRestoreThenApply(t *testing.T) {
	dir := t.TempDir()
	server := redistest.Start(t, "--dir", dir)
	p := start(t, "", server.URL())
	p.until("/readyz/store", http.StatusOK)
	p.put(10)
	p.put(20)
	restore := backup(t, server, dir)
	if version := p.put(2000); version != 3 {
		t.Fatalf("version %d", version)
	}
	n := &node{version: "0"}
	if got := n.poll(p); got != 2000 {
		t.Fatalf("the node has %d", got)
	}
	p.stop()
	server.Kill()
	restore()
	server.Restart()

	p = start(t, "", server.URL())
	p.until("/readyz/store", http.StatusOK)
	if version := p.put(50); version != 3 {
		t.Fatalf("version %d: this test is about a number that is used twice", version)
	}
	if got := n.poll(p); got != 50 || n.version != "3" {
		t.Errorf("the node has %d as version %s, want 50", got, n.version)
	}
	if got := n.poll(p); got != 0 {
		t.Errorf("it is given something else once more: %d", got)
	}
	p.until("/v1/nodes", http.StatusOK, `"applied":3`)
	if got := string(p.do("GET", "/v1/nodes", nil).body); strings.Contains(got, `"lost"`) {
		t.Errorf("nodes %s", got)
	}
	// A node that reports only now shows the lost document to all, and no later version takes the
	// number of a node's version.
	p.do("GET", "/node/v1/snapshot?node=late&boot=2&wait=0s&after=6&applied=3&applied_mark=00112233", nil)
	p.until("/v1/nodes", http.StatusOK, `"lost":true`)
	p.until("/metrics", http.StatusOK, "weir_nodes_behind 1")
	if version := p.put(60); version != 7 {
		t.Errorf("version %d, and a node had a 6", version)
	}
}

// Redis fails over to a replica that lacks the newest version, while the control plane runs and a
// pipeline repeats its PUT. No number means two documents, and the last acknowledged version is in
// force everywhere.
func TestFailoverDuringRepeatedPuts(t *testing.T) {
	dir := t.TempDir()
	server := redistest.Start(t, "--dir", dir)
	var log logtest.Buffer
	s := bare(t)
	s.DataDir, s.RedisURL = "", server.URL()
	p := startWith(t, s, slog.New(slog.NewTextHandler(&log, nil)))
	p.until("/readyz/store", http.StatusOK)
	p.put(10)
	restore := backup(t, server, dir)
	p.put(2000)
	n := &node{version: "0"}
	if got := n.poll(p); got != 2000 {
		t.Fatalf("the node has %d", got)
	}
	server.Kill()
	restore()
	server.Restart()
	deadline := time.Now().Add(20 * time.Second)
	for p.do("PUT", "/v1/policyset", document(50), "If-Match", "*").status != http.StatusOK {
		if time.Now().After(deadline) {
			t.Fatal("no PUT is taken")
		}
		time.Sleep(time.Millisecond)
	}
	if got := n.poll(p); got != 50 {
		t.Errorf("the node has %d, want 50", got)
	}
	current := p.do("GET", "/v1/policyset", nil)
	if string(current.body) != string(document(50)) || current.header.Get("ETag") != `"3"` {
		t.Errorf("current is %s: %s", current.header.Get("ETag"), current.body)
	}
	for version, want := range map[string]string{"1": "quota: 10,", "2": "quota: 2000,", "3": "quota: 50,"} {
		if a := p.do("GET", "/v1/versions/"+version, nil); !strings.Contains(string(a.body), want) {
			t.Errorf("version %s is %s", version, a.body)
		}
	}
	p.until("/metrics", http.StatusOK, `weir_store_lost_total{part="policyset"} 1`)
	if !strings.Contains(log.String(), `level=WARN msg="the store had lost the current version`) {
		t.Errorf("log %s", log.String())
	}
	p.until("/v1/audit?resource=policyset", http.StatusOK, `"policyset.restore"`)
}
