// Package kubetest runs a Kubernetes API for tests: etcd and kube-apiserver. Objects are validated,
// stored and served as in a cluster. Nothing acts on them, so no pod starts, unless StartNode adds
// the programs that run pods. tools/setup.sh kube and pods build these programs.
package kubetest

import (
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/weir-proxy/weir/tools/stack"
)

// token is the token of the administrator.
const token = "administrator-of-the-tests"

// A Server is a Kubernetes API, without controllers and nodes unless StartNode made it. Its methods
// may be called from any goroutine.
type Server struct {
	// URL is where the API is, like https://127.0.0.1:20443. Its certificate is its own.
	URL string
	// Kubeconfig is a file with which clients become administrators.
	Kubeconfig string
}

// Start runs an API until the test ends. It fails the test if that is not ready within a minute.
// Without controllers there are no service accounts, so it does not ask for them.
func Start(t testing.TB) *Server {
	t.Helper()
	return start(t, "--disable-admission-plugins=ServiceAccount")
}

func start(t testing.TB, flags ...string) *Server {
	t.Helper()
	dir := t.TempDir()
	clients, peers := localURL(t, "http"), localURL(t, "http")
	run(t, "etcd", "--data-dir", filepath.Join(dir, "etcd"), "--unsafe-no-fsync", "--log-level", "warn",
		"--listen-client-urls", clients, "--advertise-client-urls", clients, "--listen-peer-urls", peers,
		"--initial-advertise-peer-urls", peers, "--initial-cluster", "default="+peers)
	port := FreePort(t)
	s := &Server{URL: fmt.Sprintf("https://127.0.0.1:%d", port), Kubeconfig: filepath.Join(dir, "kubeconfig")}
	private, public := accountKeys(t, dir)
	write(t, filepath.Join(dir, "tokens.csv"), token+",admin,1,system:masters\n")
	server := run(t, "kube-apiserver", append(flags, "--etcd-servers="+clients,
		"--bind-address=127.0.0.1", "--advertise-address=127.0.0.1", fmt.Sprintf("--secure-port=%d", port),
		"--cert-dir="+filepath.Join(dir, "certs"), "--service-cluster-ip-range=10.96.0.0/24",
		"--service-account-issuer=https://kubernetes.default.svc", "--service-account-key-file="+public,
		"--service-account-signing-key-file="+private, "--token-auth-file="+filepath.Join(dir, "tokens.csv"),
		"--authorization-mode=RBAC")...)
	write(t, s.Kubeconfig, kubeconfig(s.URL))
	s.awaitReady(t, server)
	return s
}

// run starts one of the programs that tools/setup.sh builds.
func run(t testing.TB, name string, arguments ...string) *stack.Process {
	t.Helper()
	return launch(t, name, Program(t, name), arguments...)
}

// launch starts a program that ends with the test.
func launch(t testing.TB, name, path string, arguments ...string) *stack.Process {
	t.Helper()
	p, err := stack.Start(stack.Command{Name: name, Path: path, Args: arguments})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("%s wrote:\n%s", name, p.Tail(20))
		}
		p.Stop(10 * time.Second)
	})
	return p
}

// Program returns the path of a program in the cache: etcd, kube-apiserver, kubelet, helm and so
// on.
func Program(t testing.TB, name string) string {
	t.Helper()
	cache, err := stack.CacheDir()
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(cache, "bin", name)
	if err := stack.Executable(path); err != nil {
		t.Fatalf("%v: tools/setup.sh kube pods builds it, once, in some twenty minutes", err)
	}
	return path
}

// accountKeys writes the key pair of service accounts.
func accountKeys(t testing.TB, dir string) (private, public string) {
	t.Helper()
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalPKIXPublicKey(&key.PublicKey)
	if err != nil {
		t.Fatal(err)
	}
	private, public = filepath.Join(dir, "accounts.key"), filepath.Join(dir, "accounts.pub")
	block := &pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(key)}
	write(t, private, string(pem.EncodeToMemory(block)))
	write(t, public, string(pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der})))
	return private, public
}

func kubeconfig(url string) string {
	return fmt.Sprintf(`apiVersion: v1
kind: Config
current-context: test
contexts: [{name: test, context: {cluster: test, user: test}}]
clusters: [{name: test, cluster: {server: %q, insecure-skip-tls-verify: true}}]
users: [{name: test, user: {token: %s}}]
`, url, token)
}

func (s *Server) awaitReady(t testing.TB, server *stack.Process) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(100 * time.Millisecond) {
		status, answer, err := s.Call("GET", "/readyz", "", "")
		switch {
		case err == nil && status == 200:
			return
		case !server.Running():
			t.Fatal(server.Err())
		case time.Now().After(deadline):
			t.Fatalf("kube-apiserver is not ready: %d %s %v", status, answer, err)
		}
	}
}

func localURL(t testing.TB, scheme string) string {
	t.Helper()
	return fmt.Sprintf("%s://127.0.0.1:%d", scheme, FreePort(t))
}

// FreePort returns a port that nothing listens at and that no other test of the process gets.
func FreePort(t testing.TB) int {
	t.Helper()
	port, err := stack.FreePort()
	if err != nil {
		t.Fatal(err)
	}
	return port
}

func write(t testing.TB, path, content string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}
