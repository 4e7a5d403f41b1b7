package app_test

import (
	"bufio"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/weir-proxy/weir/test/redistest"
)

// A replica that has nothing to do sends Redis at most four commands a second, and polls.
func TestAnIdleReplicaSendsFewCommands(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	p := start(t, "", server.URL())
	p.until("/readyz", 200)
	p.put(100)
	time.Sleep(2 * time.Second) // What a start brings about is over.
	conn, err := net.Dial("tcp", server.Addr())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	const watched = 20 * time.Second
	if _, err := conn.Write([]byte("MONITOR\r\n")); err != nil {
		t.Fatal(err)
	}
	if err := conn.SetReadDeadline(time.Now().Add(watched)); err != nil {
		t.Fatal(err)
	}
	sent := map[string]int{}
	total := 0
	for lines := bufio.NewScanner(conn); lines.Scan(); {
		// 1795348800.123456 [0 127.0.0.1:40000] "evalsha" …; commands of scripts come from lua.
		_, command, is := strings.Cut(lines.Text(), `] "`)
		if !is || strings.Contains(lines.Text(), " lua] ") {
			continue
		}
		name, _, _ := strings.Cut(command, `"`)
		sent[name]++
		total++
	}
	t.Logf("in %v: %v", watched, sent)
	if most := int(watched.Seconds()) * 4; total > most || total == 0 {
		t.Errorf("%d commands in %v, want at most %d: %v", total, watched, most, sent)
	}
}
