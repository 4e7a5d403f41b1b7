package main

import (
	"bytes"
	"encoding/xml"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"
)

// Of twenty requests each class has its number.
func TestClasses(t *testing.T) {
	var got [4]int
	for i := range 2000 {
		got[classOf(i)]++
	}
	for class, one := range classes {
		if got[class] < one.of20*99 || got[class] > one.of20*101 {
			t.Errorf("%s has %d of 2000", one.name, got[class])
		}
	}
}

// The service works on one request in each of its places, also after a change.
func TestService(t *testing.T) {
	s := newService()
	s.change(2 - places)
	var open sync.WaitGroup
	for range 6 {
		open.Go(func() { s.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, "/", nil)) })
	}
	open.Wait()
	if s.free != 2 || len(s.queued) != 0 {
		t.Errorf("%d free, %d wait", s.free, len(s.queued))
	}
	s.change(places - 2)
	if s.free != places {
		t.Errorf("%d free", s.free)
	}
}

// synthetic returns a course in which the service answers half of its capacity.
func synthetic(name string) *course {
	c := newCourse(name, 9*time.Second)
	for class, one := range classes {
		for i := range c.sent[class] {
			c.sent[class][i], c.good[class][i] = offered*one.of20/20, capacity*one.of20/40
		}
	}
	c.took = []time.Duration{takes, 2 * takes}
	return c
}

// The page gets the table where its marks are and nothing else changes; the plot is well-formed.
func TestThePage(t *testing.T) {
	courses := []*course{synthetic("a <b>"), synthetic("c")}
	if want := "| a <b> | 50 % | 125 % | 50 % | 16.7 % | 16.7 % | 16.7 % | 16.7 % | " +
		"200 ms |\n"; !strings.Contains(table(courses).Markdown(), want) {
		t.Error(table(courses).Markdown())
	}
	docs := t.TempDir()
	written, err := os.ReadFile("../../../docs/" + pageName)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(docs, filepath.Dir(pageName)), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(docs, pageName), written, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := page(courses).Write(docs); err != nil {
		t.Fatal(err)
	}
	if err := page(courses).Check(docs); err != nil {
		t.Error(err)
	}
	picture, _ := os.ReadFile(filepath.Join(docs, "choose/overload.svg"))
	d := xml.NewDecoder(bytes.NewReader(picture))
	for {
		if _, err := d.Token(); err == io.EOF {
			break
		} else if err != nil {
			t.Fatal(err)
		}
	}
}

// A course with late requests, or beside busy programs, is refused. A few late requests or a little
// foreign work are accepted.
func TestFiguresOfABusyMachineAreRefused(t *testing.T) {
	late := func(count int) []time.Duration {
		all := make([]time.Duration, 1000)
		for i := range count {
			all[i*7] = 2 * mostLate
		}
		return all
	}
	for _, c := range []struct {
		conditions
		want string
	}{
		{conditions{late(0), 0}, ""},
		{conditions{late(5), mostForeign}, ""},
		{conditions{late(20), 0}, "one request in a hundred was sent 20ms or more after its time"},
		{conditions{late(0), 0.5}, "other programs used 50 % of the processors"},
	} {
		if got := c.flaw(); !strings.HasPrefix(got, c.want) || (got == "") != (c.want == "") {
			t.Errorf("%q, want %q", got, c.want)
		}
	}
}

// Each contestant's configuration has its own filter and no other.
func TestConfigurations(t *testing.T) {
	config, err := os.ReadFile("../../../envoy.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for i, c := range contestants {
		got := c.configure(string(config))
		weir, other := strings.Contains(got,
			"- name: weir\n                    typed_config"), strings.Contains(got, "AdaptiveConcurrency")
		if weir != (i == 2) || other != (i == 1) || strings.Contains(got, "access_log:") ||
			!strings.Contains(got, "max_requests: 100000") {
			t.Errorf("%s: Weir %v, Envoy's %v", c.name, weir, other)
		}
		if err := yaml.Unmarshal([]byte(got), new(any)); err != nil {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}
