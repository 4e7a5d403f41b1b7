package stack

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"
)

// ControlPlaneOptions says how to run `weir serve`.
type ControlPlaneOptions struct {
	// Binary is the built `weir`.
	Binary string
	// Port is on 127.0.0.1; 0 is chosen.
	Port int
	// RedisURL puts the state into Redis; empty keeps it in DataDir.
	RedisURL, DataDir string
	// AdminToken and NodeToken are handed over in the environment, where no list of processes shows
	// them.
	AdminToken, NodeToken string
	// Env is added to its environment.
	Env []string
	// TLS is how to speak to it, if Env gives it a certificate.
	TLS *tls.Config
	// Log, if not nil, receives its output.
	Log io.Writer
	// Waiting, if not nil, is called once with the reason if it is not ready two seconds after its
	// start.
	Waiting func(why error)
}

// ControlPlane is a running `weir serve`.
type ControlPlane struct {
	*Process
	// Port is where it listens, on 127.0.0.1.
	Port int

	adminToken string
	scheme     string
	client     *http.Client
}

// StartControlPlane runs `weir serve` and waits until it is ready, as long as ctx allows.
func StartControlPlane(ctx context.Context, o ControlPlaneOptions) (*ControlPlane, error) {
	c, err := LaunchControlPlane(o)
	if err != nil {
		return nil, err
	}
	ready := func(ctx context.Context) error { _, err := getBody(ctx, c.client, c.URL()+"/readyz/store"); return err }
	if o.Waiting != nil {
		ready = SayOnce(2*time.Second, o.Waiting, ready)
	}
	if err := c.AwaitReady(ctx, ready); err != nil {
		c.Stop()
		return nil, err
	}
	return c, nil
}

// ControlPlaneAt returns a control plane that another program has started. Only its REST API can be
// used.
func ControlPlaneAt(port int, adminToken string) *ControlPlane {
	return &ControlPlane{Port: port, adminToken: adminToken, scheme: "http", client: client}
}

// LaunchControlPlane runs `weir serve` without waiting for anything.
func LaunchControlPlane(o ControlPlaneOptions) (*ControlPlane, error) {
	var err error
	if err := Executable(o.Binary); err != nil {
		return nil, fmt.Errorf("the control plane is not built: %w; run `make build`", err)
	}
	if o.Port == 0 {
		o.Port, err = FreePort()
		if err != nil {
			return nil, err
		}
	}
	c := &ControlPlane{Port: o.Port, adminToken: o.AdminToken, scheme: "http", client: client}
	if o.TLS != nil {
		c.scheme = "https"
		c.client = &http.Client{Timeout: client.Timeout,
			Transport: &http.Transport{DisableKeepAlives: true, TLSClientConfig: o.TLS}}
	}
	c.Process, err = Start(Command{
		Name: "weir", Path: o.Binary, Args: []string{"serve"}, Out: o.Log, Err: o.Log,
		WithoutEnv: "WEIR_", Env: append(o.environmentOf(), o.Env...),
	})
	return c, err
}

// environmentOf returns the settings. None comes from the launcher's own environment.
func (o ControlPlaneOptions) environmentOf() []string {
	return []string{
		fmt.Sprintf("WEIR_LISTEN=127.0.0.1:%d", o.Port), "WEIR_REDIS_URL=" + o.RedisURL, "WEIR_DATA_DIR=" + o.DataDir,
		"WEIR_ADMIN_TOKEN=" + o.AdminToken, "WEIR_NODE_TOKEN=" + o.NodeToken,
	}
}

// URL returns the URL of the REST API.
func (c *ControlPlane) URL() string { return fmt.Sprintf("%s://127.0.0.1:%d", c.scheme, c.Port) }

// Stop ends the control plane, within six seconds.
func (c *ControlPlane) Stop() { c.Process.Stop(5 * time.Second) }

// Answer is a response of the REST API.
type Answer struct {
	Status int
	ETag   string
	Body   []byte
}

// Call sends a request to the REST API as administrator; header holds names and values in turn.
func (c *ControlPlane) Call(ctx context.Context, method, path string, body []byte, header ...string) (Answer, error) {
	request, err := http.NewRequestWithContext(ctx, method, c.URL()+path, bytes.NewReader(body))
	if err != nil {
		return Answer{}, err
	}
	request.Header.Set("Authorization", "Bearer "+c.adminToken)
	for i := 0; i+1 < len(header); i += 2 {
		request.Header.Set(header[i], header[i+1])
	}
	response, err := c.client.Do(request)
	if err != nil {
		return Answer{}, err
	}
	defer response.Body.Close()
	content, err := io.ReadAll(response.Body)
	return Answer{Status: response.StatusCode, ETag: response.Header.Get("ETag"), Body: content}, err
}

// HasPolicySet reports whether a policy set has been stored.
func (c *ControlPlane) HasPolicySet(ctx context.Context) (bool, error) {
	answer, err := c.Call(ctx, http.MethodGet, "/v1/policyset", nil)
	if err == nil && answer.Status != http.StatusOK {
		err = fmt.Errorf("GET /v1/policyset: %d %s", answer.Status, strings.TrimSpace(string(answer.Body)))
	}
	return answer.ETag != `"0"`, err
}

// Apply stores a policy set, in YAML or JSON, as the next version over whatever is there, and
// returns that version.
func (c *ControlPlane) Apply(ctx context.Context, document []byte) (uint64, error) {
	answer, err := c.Call(ctx, http.MethodPut, "/v1/policyset", document, "If-Match", "*")
	if err != nil {
		return 0, err
	}
	var stored struct {
		Version uint64 `json:"version"`
	}
	if answer.Status/100 != 2 {
		return 0, fmt.Errorf("the control plane refused the policy set: %d %s", answer.Status,
			strings.TrimSpace(string(answer.Body)))
	}
	if err := json.Unmarshal(answer.Body, &stored); err != nil || stored.Version == 0 {
		return 0, fmt.Errorf("PUT /v1/policyset answered without a version: %s", answer.Body)
	}
	return stored.Version, nil
}

// Node is one Envoy as the control plane lists it.
type Node struct {
	ID      string `json:"id"`
	Applied uint64 `json:"applied"`
	Refused uint64 `json:"refused"`
	Reason  string `json:"reason"`
	State   string `json:"state"`
	Active  bool   `json:"active"`
}

// Nodes lists the Envoys.
func (c *ControlPlane) Nodes(ctx context.Context) (all []Node, err error) {
	for token := ""; ; {
		answer, err := c.Call(ctx, http.MethodGet, "/v1/nodes?page_size=200&page_token="+url.QueryEscape(token), nil)
		if err != nil {
			return nil, err
		}
		var page struct {
			Nodes []Node `json:"nodes"`
			Next  string `json:"next_page_token"`
		}
		if err := json.Unmarshal(answer.Body, &page); err != nil || answer.Status != http.StatusOK {
			return nil, fmt.Errorf("GET /v1/nodes: %d %s", answer.Status, answer.Body)
		}
		all = append(all, page.Nodes...)
		token = page.Next
		if token == "" {
			return all, nil
		}
	}
}

// AwaitApplied waits until a process of each node with one of these ids has applied version or a
// later version. A process that has just ended is still listed, and counts.
func (c *ControlPlane) AwaitApplied(ctx context.Context, version uint64, ids ...string) error {
	return Await(ctx, fmt.Sprintf("version %d on %s", version, strings.Join(ids, ", ")),
		func(ctx context.Context) error {
			nodes, err := c.Nodes(ctx)
			if err != nil {
				return err
			}
			applied := map[string]uint64{}
			for _, n := range nodes {
				applied[n.ID] = max(applied[n.ID], n.Applied)
			}
			for _, id := range ids {
				if applied[id] < version {
					return fmt.Errorf("/v1/nodes has %+v", nodes)
				}
			}
			return nil
		})
}
