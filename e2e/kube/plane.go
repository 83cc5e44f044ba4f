package kube

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"k8s.io/client-go/rest"

	"github.com/tandem-serving/tandem/e2e/kube/services"
	"github.com/tandem-serving/tandem/stack"
)

const (
	// startTimeout bounds the start of one program. A quiet machine takes 4 s for etcd and the API server together, and 2 s
	// more for a cluster.
	startTimeout = 2 * time.Minute
	// tries is how often a start is tried with other ports, since a free one may be taken before the program has it.
	tries = 3
)

// Plane is a running control plane.
type Plane struct {
	tb     testing.TB
	tools  string   // folder of the programs
	dir    string   // what the programs keep
	token  string   // of the administrator
	host   string   // address of the API server
	port   int      // of the API server; 0 = one that is free
	flags  []string // of the API server, beside those that all have
	etcd   *stack.Process
	server *stack.Process
	ports  ports
}

type ports struct{ etcd, peer, server int }

// nowhere is an address for documentation (RFC 5737): what would be told to pods, which there are none of. If not told, the
// API server looks for the machine's own, and there may be none.
const nowhere = "192.0.2.1"

// Start runs a control plane on loopback until the test ends. Where the programs are missing the test is skipped, or fails
// if CI=true.
func Start(tb testing.TB) *Plane {
	tb.Helper()
	// Without a controller-manager no namespace has the account named default, which admission would ask for.
	flags := []string{"--advertise-address=" + nowhere, "--disable-admission-plugins=ServiceAccount"}
	return start(tb, &Plane{host: "127.0.0.1", flags: flags})
}

// start completes a plane, of which it is known where the API server is to be, and runs it.
func start(tb testing.TB, p *Plane) *Plane {
	tb.Helper()
	p.tb, p.tools, p.dir, p.token = tb, requireTools(tb), tb.TempDir(), rand.Text()
	tb.Cleanup(p.stop)
	if err := p.writeSecrets(); err != nil {
		tb.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(tb.Context(), startTimeout)
	defer cancel()
	var err error
	for range tries {
		if err = p.start(ctx); err == nil {
			break
		}
		p.stop()
	}
	if err != nil {
		tb.Fatal(err)
	}
	p.kubeconfig("admin", p.token, "default")
	return p
}

// Config is the administrator's, who may do everything.
func (p *Plane) Config() *rest.Config { return p.config(p.token) }

func (p *Plane) config(token string) *rest.Config {
	return &rest.Config{Host: p.url(), BearerToken: token, TLSClientConfig: rest.TLSClientConfig{CAFile: p.path("pki/apiserver.crt")},
		QPS: -1} // no limit: tests make thousands of objects
}

func (p *Plane) url() string {
	return "https://" + net.JoinHostPort(p.host, strconv.Itoa(p.ports.server))
}

func (p *Plane) path(name string) string { return filepath.Join(p.dir, name) }

// StopAPIServer ends the API server at once. Its clients' connections break.
func (p *Plane) StopAPIServer() {
	p.tb.Helper()
	kill(p.tb, &p.server)
}

// StartAPIServer starts it again, at the same address and with the same data, and waits until it is ready.
func (p *Plane) StartAPIServer(ctx context.Context) (err error) {
	p.server, err = p.run(ctx, "kube-apiserver", p.url()+"/readyz", p.serverFlags())
	return err
}

func (p *Plane) start(ctx context.Context) (err error) {
	if p.ports, err = freePorts(); err != nil {
		return err
	}
	if p.port != 0 {
		p.ports.server = p.port
	}
	if p.etcd, err = p.run(ctx, "etcd", p.etcdURL()+"/health", p.etcdFlags()); err != nil {
		return err
	}
	return p.StartAPIServer(ctx)
}

// run starts a program and waits until it says at a URL that it is ready.
func (p *Plane) run(ctx context.Context, name, url string, flags []string) (*stack.Process, error) {
	// The API server makes its certificate when it starts, so it cannot be verified before.
	client, err := rest.HTTPClientFor(&rest.Config{BearerToken: p.token, TLSClientConfig: rest.TLSClientConfig{Insecure: true}})
	if err != nil {
		return nil, fmt.Errorf("asking %s: %w", name, err)
	}
	defer client.CloseIdleConnections()
	return stack.Start(ctx, stack.Program{Name: name, Path: filepath.Join(p.tools, name), Args: flags, ReadyTimeout: startTimeout,
		Probe: func(ctx context.Context) error { return get(ctx, client, url) }})
}

func (p *Plane) stop() {
	p.tb.Helper()
	kill(p.tb, &p.server)
	kill(p.tb, &p.etcd)
}

// kill ends a program that may not run at all; it keeps nothing that a test needs to be whole. Should it have ended before,
// then the test has gone wrong.
func kill(tb testing.TB, program **stack.Process) {
	tb.Helper()
	if *program == nil {
		return
	}
	select {
	case <-(*program).Done():
		tb.Error((*program).Wait())
	default:
	}
	if err := (*program).Kill(); err != nil {
		tb.Error(err)
	}
	*program = nil
}

func (p *Plane) etcdURL() string { return loopback(p.ports.etcd) }

func loopback(port int) string { return "http://" + net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) }

func (p *Plane) etcdFlags() []string {
	return []string{"--name=plane", "--data-dir=" + p.path("etcd"), "--unsafe-no-fsync", "--log-level=error",
		"--listen-client-urls=" + p.etcdURL(), "--advertise-client-urls=" + p.etcdURL(),
		"--listen-peer-urls=" + loopback(p.ports.peer), "--initial-advertise-peer-urls=" + loopback(p.ports.peer),
		"--initial-cluster=plane=" + loopback(p.ports.peer)}
}

func (p *Plane) serverFlags() []string {
	return append([]string{"--etcd-servers=" + p.etcdURL(), "--bind-address=" + p.host,
		"--secure-port=" + strconv.Itoa(p.ports.server), "--cert-dir=" + p.path("pki"), "--token-auth-file=" + p.path("tokens.csv"), "--authorization-mode=RBAC",
		"--service-account-key-file=" + p.path("accounts.key"), "--service-account-signing-key-file=" + p.path("accounts.key"),
		"--service-account-issuer=https://kubernetes.default.svc", "--service-cluster-ip-range=" + services.Range,
		"--profiling=false"}, p.flags...)
}

func get(ctx context.Context, client *http.Client, url string) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	answer, err := client.Do(request)
	if err != nil {
		return err
	}
	_ = answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		return errors.New(answer.Status)
	}
	return nil
}

// freePorts finds ports that were free a moment ago: the programs cannot be told to take any.
func freePorts() (ports, error) {
	var found [3]int
	for i := range found {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return ports{}, fmt.Errorf("finding a free port: %w", err)
		}
		defer l.Close()
		found[i] = l.Addr().(*net.TCPAddr).Port
	}
	return ports{etcd: found[0], peer: found[1], server: found[2]}, nil
}

// requireTools finds .tools/kube of the checkout that the test runs in.
func requireTools(tb testing.TB) string {
	tb.Helper()
	dir, err := os.Getwd()
	if err != nil {
		tb.Fatal(err)
	}
	for up := ""; dir != up; up, dir = dir, filepath.Dir(dir) {
		tools := filepath.Join(dir, ".tools", "kube")
		if _, err := os.Stat(filepath.Join(tools, "kube-apiserver")); err == nil {
			return tools
		}
	}
	const missing = "there is no Kubernetes control plane (make .tools/kube builds one)"
	if os.Getenv("CI") == "true" {
		tb.Fatal(missing)
	}
	tb.Skip(missing)
	return ""
}
