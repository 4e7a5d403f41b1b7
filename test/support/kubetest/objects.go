package kubetest

import (
	"bytes"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"
)

// An Object is one object of Kubernetes as JSON has it.
type Object map[string]any

// Kind returns the object's kind, like Deployment.
func (o Object) Kind() string { return o.text("kind") }

// Name returns the object's name, without its namespace.
func (o Object) Name() string { return Object(o.part("metadata")).text("name") }

// Namespace returns the object's namespace; empty if none is written.
func (o Object) Namespace() string { return Object(o.part("metadata")).text("namespace") }

func (o Object) text(field string) string {
	s, _ := o[field].(string)
	return s
}

func (o Object) part(field string) map[string]any {
	m, _ := o[field].(map[string]any)
	return m
}

// Parse reads the documents of manifests. Empty ones are left out.
func Parse(manifests string) (all []Object, err error) {
	for d := yaml.NewDecoder(strings.NewReader(manifests)); ; {
		// Into a map of its own kind, or maps inside would be Objects.
		var o map[string]any
		switch err := d.Decode(&o); {
		case errors.Is(err, io.EOF):
			return all, nil
		case err != nil:
			return nil, err
		}
		if o != nil {
			all = append(all, o)
		}
	}
}

// client does not check the certificate: the API has made that itself.
var client = &http.Client{
	Timeout:   30 * time.Second,
	Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}},
}

// Call sends a request to a path of the API. The content type may be empty.
func (s *Server) Call(method, path, contentType, body string) (status int, answer string, err error) {
	request, err := http.NewRequest(method, s.URL+path, strings.NewReader(body))
	if err != nil {
		return 0, "", err
	}
	request.Header.Set("Authorization", "Bearer "+token)
	if contentType != "" {
		request.Header.Set("Content-Type", contentType)
	}
	response, err := client.Do(request)
	if err != nil {
		return 0, "", err
	}
	defer response.Body.Close()
	b, err := io.ReadAll(response.Body)
	return response.StatusCode, string(b), err
}

// Apply applies manifests in their order, as kubectl apply --server-side does, and fails the test
// at the first that is refused. Kinds that manifests before have defined are awaited.
func (s *Server) Apply(t testing.TB, manifests string) {
	t.Helper()
	objects, err := Parse(manifests)
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range objects {
		if err := s.TryApply(o); err != nil {
			t.Fatal(err)
		}
	}
}

// TryApply applies one object. The error has the answer of the API.
func (s *Server) TryApply(o Object) error {
	path, err := s.Path(o)
	if err != nil {
		return err
	}
	body, err := json.Marshal(o)
	if err != nil {
		return err
	}
	query := "?fieldManager=test&force=true&fieldValidation=Strict"
	status, answer, err := s.Call("PATCH", path+query, "application/apply-patch+yaml", string(body))
	if err != nil {
		return err
	}
	if status/100 != 2 {
		return fmt.Errorf("%s %s: %d %s", o.Kind(), o.Name(), status, message(answer))
	}
	return nil
}

// Path returns the object's path in the API. A kind that is not known yet is awaited for ten
// seconds: its definition may be new. Without a namespace an object is in default.
func (s *Server) Path(o Object) (string, error) {
	version := "/apis/" + o.text("apiVersion")
	if !strings.Contains(o.text("apiVersion"), "/") {
		version = "/api/" + o.text("apiVersion")
	}
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(100 * time.Millisecond) {
		plural, namespaced, err := s.resource(version, o.Kind())
		if err == nil {
			return version + place(o, namespaced) + "/" + plural + "/" + o.Name(), nil
		}
		if time.Now().After(deadline) {
			return "", err
		}
	}
}

func place(o Object, namespaced bool) string {
	switch {
	case !namespaced:
		return ""
	case o.Namespace() == "":
		return "/namespaces/default"
	}
	return "/namespaces/" + o.Namespace()
}

// resource asks for the name under which the API has the objects of a kind.
func (s *Server) resource(version, kind string) (plural string, namespaced bool, err error) {
	status, answer, err := s.Call("GET", version, "", "")
	if err != nil {
		return "", false, err
	}
	var list struct {
		Resources []struct {
			Name       string `json:"name"`
			Kind       string `json:"kind"`
			Namespaced bool   `json:"namespaced"`
		} `json:"resources"`
	}
	if status == 200 {
		err = json.NewDecoder(bytes.NewReader([]byte(answer))).Decode(&list)
	}
	for _, r := range list.Resources {
		if r.Kind == kind && !strings.Contains(r.Name, "/") {
			return r.Name, r.Namespaced, nil
		}
	}
	return "", false, errors.Join(err, fmt.Errorf("the API has no kind %s in %s", kind, version))
}

// message returns the sentence of a refusal.
func message(answer string) string {
	var status struct {
		Message string `json:"message"`
	}
	if json.Unmarshal([]byte(answer), &status) != nil || status.Message == "" {
		return answer
	}
	return status.Message
}

// Get reads an object; nil if there is none.
func (s *Server) Get(t testing.TB, path string) Object {
	t.Helper()
	status, answer, err := s.Call("GET", path, "", "")
	if err != nil || status != 200 && status != 404 {
		t.Fatalf("GET %s: %d %s %v", path, status, message(answer), err)
	}
	if status == 404 {
		return nil
	}
	var o Object
	if err := json.Unmarshal([]byte(answer), &o); err != nil {
		t.Fatal(err)
	}
	return o
}
