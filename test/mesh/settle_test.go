package mesh

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/weir-proxy/weir/tools/stack"
)

// running is the configuration with which an Envoy serves new connections at its port. All texts
// are JSON without spaces.
type running struct {
	// listener is the listener, without configurations from the discovery service of extensions.
	listener string
	// filters are the listener's HTTP filters in their order.
	filters []httpFilter
	// routes is the listener's route configuration.
	routes string
}

// An httpFilter is a filter of a listener, with its whole entry there.
type httpFilter struct {
	Name     string `json:"name"`
	Disabled bool   `json:"disabled"`
	// Discovery is not empty if the configuration comes from the discovery service of extensions.
	Discovery json.RawMessage `json:"config_discovery"`
	config    string
}

// A condition returns an error if it does not hold for a configuration.
type condition func(running) error

// hasFilter demands a filter whose name contains name, and whose configuration has all the texts.
// A filter that is for some routes alone must be in the routes.
func hasFilter(name string, texts ...string) condition {
	return func(r running) error {
		i := slices.IndexFunc(r.filters, func(f httpFilter) bool { return strings.Contains(f.Name, name) })
		if i < 0 {
			return fmt.Errorf("the listener has no filter %s", name)
		}
		f := r.filters[i]
		for _, text := range texts {
			if !strings.Contains(f.config, text) {
				return fmt.Errorf("filter %s has no %s: %s", name, text, f.config)
			}
		}
		if f.Disabled && !strings.Contains(r.routes, f.Name) {
			return fmt.Errorf("no route has the filter %s", name)
		}
		return nil
	}
}

// hasNoFilter demands that no filter has a name that contains name.
func hasNoFilter(name string) condition {
	return func(r running) error {
		if hasFilter(name)(r) == nil {
			return fmt.Errorf("the listener has the filter %s", name)
		}
		return nil
	}
}

// hasSetting demands a text in the listener.
func hasSetting(text string) condition {
	return func(r running) error {
		if !strings.Contains(r.listener, text) {
			return fmt.Errorf("the listener has no %s: %s", text, r.listener)
		}
		return nil
	}
}

// settles waits until each worker serves new connections with a configuration for which the
// conditions hold, and whose routes lead to the upstream.
//
// It asks no worker: Envoy's main thread gives a new configuration to all workers before its
// administration shows the configuration, and a worker takes it before it accepts a connection that
// was made later. So no request of a test may be under way while the configuration changes, and
// client makes a connection for each request.
func (p *proxy) settles(t *testing.T, u *stack.Upstream, conditions ...condition) {
	t.Helper()
	err := p.AwaitReady(within(t), func(context.Context) error {
		r, err := p.running()
		if err != nil {
			return err
		}
		for _, holds := range conditions {
			if err := holds(r); err != nil {
				return err
			}
		}
		return p.leadsTo(u, r)
	})
	if err != nil {
		t.Fatal(err)
	}
}

// ask asks Envoy's administration.
func (p *proxy) ask(path string) (string, error) {
	port, err := p.admin()
	if err != nil {
		return "", err
	}
	a, err := ask(fmt.Sprintf("http://127.0.0.1:%d%s", port, path))
	if err == nil && a.status != http.StatusOK {
		err = fmt.Errorf("%s: %d %s", path, a.status, a.body)
	}
	return a.body, err
}

// dump is the part of Envoy's dump that tests look at. Each kind of configuration has a field.
type dump struct {
	Configs []struct {
		Listeners []struct {
			Active  *struct{ Listener json.RawMessage } `json:"active_state"`
			Warming json.RawMessage                     `json:"warming_state"`
		} `json:"dynamic_listeners"`
		Extensions []struct {
			Filter json.RawMessage `json:"ecds_filter"`
		} `json:"ecds_filters"`
		Routes []struct {
			Config json.RawMessage `json:"route_config"`
		} `json:"dynamic_route_configs"`
	} `json:"configs"`
}

// running reads the configuration of the listener at the proxy's port.
func (p *proxy) running() (running, error) {
	body, err := p.ask("/config_dump")
	if err != nil {
		return running{}, err
	}
	var d dump
	if err := json.Unmarshal([]byte(body), &d); err != nil {
		return running{}, err
	}
	var r running
	atPort := regexp.MustCompile(fmt.Sprintf(`"port_value":%d\b`, p.port))
	extensions, routes := map[string]string{}, map[string]string{}
	for _, c := range d.Configs {
		for _, l := range c.Listeners {
			if l.Active == nil || !atPort.MatchString(compact(l.Active.Listener)) {
				continue
			}
			if l.Warming != nil {
				return r, fmt.Errorf("the listener warms up: %s", compact(l.Warming))
			}
			r.listener = compact(l.Active.Listener)
		}
		for _, e := range c.Extensions {
			extensions[nameOf(e.Filter)] = compact(e.Filter)
		}
		for _, route := range c.Routes {
			routes[nameOf(route.Config)] = compact(route.Config)
		}
	}
	if r.listener == "" {
		return r, fmt.Errorf("no active listener has the port %d", p.port)
	}
	return r, r.complete(extensions, routes)
}

// manager is the part of a listener that tests look at.
type manager struct {
	Filters []json.RawMessage `json:"http_filters"`
	Inline  json.RawMessage   `json:"route_config"`
	Routes  struct {
		Name string `json:"route_config_name"`
	} `json:"rds"`
}

// complete finds the filters and the routes that the listener names.
func (r *running) complete(extensions, routes map[string]string) error {
	var m manager
	_, text, found := strings.Cut(r.listener, managerType)
	start := strings.LastIndex(r.listener[:len(r.listener)-len(text)], "{")
	if !found {
		return fmt.Errorf("the listener has no HTTP: %s", r.listener)
	}
	// Decode reads one value and leaves the text behind it.
	if err := json.NewDecoder(strings.NewReader(r.listener[start:])).Decode(&m); err != nil {
		return err
	}
	for _, raw := range m.Filters {
		f := httpFilter{config: compact(raw)}
		if err := json.Unmarshal(raw, &f); err != nil {
			return err
		}
		if f.Discovery != nil {
			if f.config, found = extensions[f.Name]; !found {
				return fmt.Errorf("filter %s has not arrived", f.Name)
			}
		}
		r.filters = append(r.filters, f)
	}
	r.routes = compact(m.Inline)
	if m.Routes.Name != "" {
		if r.routes, found = routes[m.Routes.Name]; !found {
			return fmt.Errorf("the routes %s have not arrived", m.Routes.Name)
		}
	}
	return nil
}

const managerType = `"@type":"type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager"`

// leadsTo checks that the routes name a cluster in which the upstream is healthy.
func (p *proxy) leadsTo(u *stack.Upstream, r running) error {
	clusters, err := p.ask("/clusters")
	if err != nil {
		return err
	}
	line := regexp.MustCompile(fmt.Sprintf(`(?m)^(.+)::127\.0\.0\.1:%d::health_flags::healthy$`, u.Port))
	for _, m := range line.FindAllStringSubmatch(clusters, -1) {
		if strings.Contains(r.routes, `"cluster":"`+m[1]+`"`) {
			return nil
		}
	}
	return fmt.Errorf("no route leads to the port %d: %s", u.Port, r.routes)
}

// nameOf returns the name of a part of a configuration.
func nameOf(raw json.RawMessage) string {
	var named struct{ Name string }
	_ = json.Unmarshal(raw, &named)
	return named.Name
}

// compact returns JSON without spaces. No JSON is an empty text.
func compact(raw json.RawMessage) string {
	var b bytes.Buffer
	_ = json.Compact(&b, raw)
	return b.String()
}
