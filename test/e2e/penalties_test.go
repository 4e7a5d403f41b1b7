package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// Each offence brings ten times as long as the one before.
const penalised = `
version: weir/v1
identity: {consumer: [{header: x-api-key}]}
policies:
  - name: api
    match: {paths: [/api]}
    partition: [consumer]
    limit: {quota: 2, window: 24h}
    mode: local
    penalty: {after: {refusals: 3, within: 1m}, for: FIRST, factor: 10, max: 1h, forget: 2h, jitter: 0%}
  - {name: open, match: {paths: [/open]}, partition: [consumer], limit: {quota: 1000000, window: 1h}, mode: local}
`

// offender is a test's knowledge about a caller. Its last penalty began between from and to.
type offender struct {
	name     string
	from, to time.Time
	// charged: an Envoy that did not know the penalty yet has decided a request by its bucket.
	charged bool
}

func offenders(count int) []offender {
	all := make([]offender, count)
	for i := range all {
		all[i].name = fmt.Sprint("bot-", i)
	}
	return all
}

// each does something for every caller, some at a time.
func (w *world) each(all []offender, do func(client *http.Client, o *offender) error) {
	w.t.Helper()
	const clients = 32
	errs := make([]error, clients)
	var running sync.WaitGroup
	for c := range clients {
		running.Go(func() {
			client := &http.Client{Timeout: patience}
			defer client.CloseIdleConnections()
			for i := c; i < len(all) && errs[c] == nil; i += clients {
				errs[c] = do(client, &all[i])
			}
		})
	}
	running.Wait()
	for _, err := range errs {
		if err != nil {
			w.t.Fatal(err)
		}
	}
}

// offend makes one Envoy refuse every caller three times, and checks at once that all Envoys then
// refuse it by a penalty of that length. Before that the Envoy lets `allowed` requests of the
// caller through.
func (w *world) offend(all []offender, allowed int, length time.Duration) {
	w.t.Helper()
	w.each(all, func(client *http.Client, o *offender) error {
		envoy := w.envoys[int(o.name[len(o.name)-1])%len(w.envoys)]
		for n := range allowed + 3 {
			o.from = time.Now()
			got, err := send(client, request(http.MethodPost, envoy.URL()+"/api", "x-api-key", o.name))
			o.to = time.Now()
			if err != nil {
				return err
			}
			if refused := got.status == 429; refused != (n >= allowed) || inPenalty(got) {
				return fmt.Errorf("%s: request %d of %d: %d %s", o.name, n, allowed+3, got.status, got.body)
			}
		}
		return w.refusedUntil(client, o, length)
	})
}

func inPenalty(a answer) bool {
	return a.status == 429 && strings.Contains(a.body, "#abnormal-usage-detected")
}

// underPenalty checks that every Envoy refuses every caller by a penalty that ends when it should.
func (w *world) underPenalty(all []offender, length time.Duration) {
	w.t.Helper()
	w.each(all, func(client *http.Client, o *offender) error { return w.refusedUntil(client, o, length) })
}

// refusedUntil waits until every Envoy refuses a caller by a penalty, and checks that the penalty
// is of that length, to the second. It asks each Envoy too seldom for a penalty that this brings
// about.
func (w *world) refusedUntil(client *http.Client, o *offender, length time.Duration) error {
	for _, envoy := range w.envoys {
		var got answer
		var sent time.Time
		for _, wait := range []time.Duration{time.Until(o.to.Add(250 * time.Millisecond)), 3 * time.Second} {
			time.Sleep(wait)
			var err error
			sent = time.Now()
			got, err = send(client, request(http.MethodPost, envoy.URL()+"/api", "x-api-key", o.name))
			if err != nil {
				return err
			}
			if inPenalty(got) {
				break
			}
			o.charged = true
		}
		if !inPenalty(got) {
			return fmt.Errorf("%s at %s, %v after its offence: %d %s", o.name, envoy.Name, time.Since(o.to), got.status,
				got.body)
		}
		retry, err := strconv.Atoi(got.Get("Retry-After"))
		left := time.Duration(retry) * time.Second
		// Whole seconds are rounded up. The wait is the later one of penalty and bucket, and the
		// bucket earns a token in twelve hours. awaitNone checks that the penalty itself ends. Two
		// Envoys mean the same Unix millisecond, by clocks that a process keeps to 10 ms.
		const apart = 11 * time.Millisecond
		earliest, latest := o.from.Add(length-apart), sent.Add(12*time.Hour+time.Second)
		if err != nil || got.at.Add(left).Before(earliest) || sent.Add(left).After(latest) {
			return fmt.Errorf("%s at %s: the penalty ends in %v, %v after it began (%v)", o.name, envoy.Name, left,
				got.at.Sub(o.to), err)
		}
	}
	return nil
}

// polite asks every Envoy for a path that only callers without a penalty get.
func (w *world) polite(all []offender) {
	w.t.Helper()
	for _, envoy := range w.envoys {
		w.each(all, func(client *http.Client, o *offender) error {
			got, err := send(client, request(http.MethodPost, envoy.URL()+"/open", "x-api-key", o.name))
			if err == nil && got.status != 200 {
				err = fmt.Errorf("%s at %s: %d %s", o.name, envoy.Name, got.status, got.body)
			}
			return err
		})
	}
}

// listed returns the number of penalties in force at the control plane.
func (w *world) listed(query string) (count int) {
	w.t.Helper()
	got, err := w.controlPlane.Call(w.within(patience), http.MethodGet, "/v1/penalties?page_size=1"+query, nil)
	var answer struct{ Count int }
	if err == nil && got.Status == http.StatusOK {
		err = json.Unmarshal(got.Body, &answer)
	}
	if err != nil || got.Status != http.StatusOK {
		w.t.Fatalf("the list: %d %s %v", got.Status, got.Body, err)
	}
	return answer.Count
}

// awaitNone waits until no penalty is in force any more, at the control plane and at the Envoys.
func (w *world) awaitNone(all []offender, length time.Duration) {
	w.t.Helper()
	for _, o := range all {
		time.Sleep(time.Until(o.to.Add(length)))
	}
	w.await("the penalties to end", func(context.Context) error {
		if n := w.listed(""); n > 0 {
			return fmt.Errorf("%d are listed", n)
		}
		return nil
	})
}

// Offenders are refused by both Envoys to the second, longer after each offence, through restarts
// of both Envoys and of the control plane; a caller that is not one is never touched; and a pardon
// reaches both Envoys.
func TestPenaltiesOutliveEverything(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name     string
		embedded bool
		callers  int
		first    time.Duration
	}{{"Redis", false, 1000, 10 * time.Second}, {"a file", true, 200, 4 * time.Second}} {
		t.Run(c.name, func(t *testing.T) {
			document := strings.Replace(penalised, "FIRST", c.first.String(), 1)
			w := start(t, setup{envoys: 2, workers: 2, embedded: c.embedded, policies: document})
			bots, good := offenders(c.callers), []offender{{name: "alice"}, {name: "bob"}}
			polite := load{clients: 2, rate: 50, request: func(i int) *http.Request {
				return request(http.MethodPost, w.envoys[i%2].URL()+"/open", "x-api-key", good[i%2].name)
			}}.background(w.ctx)
			w.offend(bots, 2, c.first)
			w.awaitNone(bots, c.first)
			w.offend(bots, 0, 10*c.first)
			if n := w.listed(""); n != c.callers {
				t.Errorf("%d are listed", n)
			}
			w.polite(good)
			polite.end().mustBe(t, 200)

			w.controlPlane.Kill()
			w.restartEnvoy()
			w.restartEnvoy()
			w.startControlPlane()
			w.awaitPolicies()
			for i := range bots {
				bots[i].charged = false // The Envoys' buckets have not survived.
			}
			w.underPenalty(bots, 10*c.first)
			w.polite(good)
			if n := w.listed("&policy=api"); n != c.callers {
				t.Errorf("%d are listed after the restarts", n)
			}
			w.awaitNone(bots, 10*c.first)
			few := slices.DeleteFunc(bots, func(o offender) bool { return o.charged })
			if len(few) < 50 {
				t.Fatalf("only %d of %d callers were refused by their penalty at once after the restarts", len(few),
					c.callers)
			}
			few = few[:50]
			w.offend(few, 2, 100*c.first) // The level has survived.
			w.pardonAll(few)
		})
	}
}

// pardonAll pardons all callers, and waits until no Envoy refuses one of them by a penalty.
func (w *world) pardonAll(all []offender) {
	w.t.Helper()
	begin := time.Now()
	body := []byte(`{"all":true,"reason":"a test"}`)
	got, err := w.controlPlane.Call(w.within(patience), http.MethodPost, "/v1/penalties/pardon", body)
	if err != nil || got.Status != 200 {
		w.t.Fatalf("a pardon: %d %s %v", got.Status, got.Body, err)
	}
	for _, envoy := range w.envoys {
		w.await("the pardon to reach "+envoy.Name, func(context.Context) error {
			if a := ask(w.t, http.MethodPost, envoy.URL()+"/api", "x-api-key", all[0].name); inPenalty(a) {
				return errors.New("refused by a penalty")
			}
			return nil
		})
		w.t.Logf("%s: pardoned after %v", envoy.Name, time.Since(begin))
	}
}
