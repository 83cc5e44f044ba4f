package boot

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
)

func listen(t *testing.T) net.Listener {
	t.Helper()
	l, err := Listen(t.Context(), "port", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l
}

// get sends a request on a connection of its own, so that no connection stays open.
func get(t *testing.T, url string, config *tls.Config) (int, string) {
	t.Helper()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, TLSClientConfig: config}}
	res, err := client.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res.StatusCode, string(body)
}

// start runs Serve until stop is called. stop returns the error of Serve.
func start(t *testing.T, services ...Service) (stop func() error) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- Serve(ctx, quiet(), services...) }()
	return func() error {
		cancel()
		return <-done
	}
}

func TestOperationsAndAdmin(t *testing.T) {
	var notReady error
	ops, admin := listen(t), listen(t)
	stop := start(t,
		Service{Name: "operations", Listener: ops, Handler: Operations(NewRegistry(IO{}), func() error { return notReady })},
		Service{Name: "admin", Listener: admin, Handler: Admin()})
	base, adminBase := "http://"+ops.Addr().String(), "http://"+admin.Addr().String()

	tests := []struct {
		name, url string
		ready     error
		status    int
		body      string
	}{
		{"alive", base + "/livez", errors.New("no engine"), 200, "ok\n"},
		{"ready", base + "/readyz", nil, 200, "ok\n"},
		{"not ready says why", base + "/readyz", errors.New("no engine"), 503, "no engine\n"},
		{"build info", base + "/metrics", nil, 200, "tandem_build_info{"},
		{"runtime metrics", base + "/metrics", nil, 200, "go_goroutines"},
		{"process metrics", base + "/metrics", nil, 200, "process_cpu_seconds_total"},
		{"no pprof among the metrics", base + "/debug/pprof/", nil, 404, ""},
		{"pprof for the operator", adminBase + "/debug/pprof/", nil, 200, "goroutine"},
		{"one profile", adminBase + "/debug/pprof/goroutine?debug=1", nil, 200, "goroutine profile"},
		{"command line", adminBase + "/debug/pprof/cmdline", nil, 200, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			notReady = tt.ready
			status, body := get(t, tt.url, nil)
			if status != tt.status || !strings.Contains(body, tt.body) {
				t.Errorf("GET = %d %q; want %d containing %q", status, body, tt.status, tt.body)
			}
		})
	}
	if err := stop(); err != nil {
		t.Errorf("Serve = %v after a stop", err)
	}
}

// announcing is a listener that signals when it is closed; a graceful end begins with that.
type announcing struct {
	net.Listener
	closed func()
}

func (a announcing) Close() error {
	a.closed()
	return a.Listener.Close()
}

func TestServeLetsRunningAnswersFinish(t *testing.T) {
	entered, ending := make(chan struct{}), make(chan struct{})
	l := announcing{listen(t), sync.OnceFunc(func() { close(ending) })}
	stop := start(t, Service{Name: "slow", Listener: l, Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		close(entered)
		<-ending
		io.WriteString(w, "whole")
	})})
	conn, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	io.WriteString(conn, "GET / HTTP/1.1\r\nHost: x\r\n\r\n")
	<-entered
	stopped := make(chan error, 1)
	go func() { stopped <- stop() }()
	res, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if body, err := io.ReadAll(res.Body); err != nil || string(body) != "whole" {
		t.Errorf("answer = %q, %v", body, err)
	}
	if err := <-stopped; err != nil {
		t.Errorf("Serve = %v", err)
	}
}

func TestServeEndsWhenOneServiceFails(t *testing.T) {
	good, bad := listen(t), listen(t)
	bad.Close()
	err := Serve(t.Context(), quiet(),
		Service{Name: "metrics", Listener: good, Handler: http.NotFoundHandler()},
		Service{Name: "admin", Listener: bad, Handler: http.NotFoundHandler()})
	if err == nil || !strings.Contains(err.Error(), "serving admin at 127.0.0.1:") {
		t.Errorf("Serve = %v, want the failed service named", err)
	}
	if _, err := good.Accept(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("the other listener is still open: %v", err)
	}
}

func TestServeTLS(t *testing.T) {
	config, err := ServerTLS("", "", quiet())
	if err != nil {
		t.Fatal(err)
	}
	l := listen(t)
	stop := start(t, Service{Name: "metrics", Listener: l, Handler: Operations(NewRegistry(IO{}), func() error { return nil }), TLS: config})
	if status, _ := get(t, "https://"+l.Addr().String()+"/livez", trusting(t, config.Certificates[0])); status != 200 {
		t.Errorf("status %d over TLS", status)
	}
	if err := stop(); err != nil {
		t.Error(err)
	}
}

func TestBuildInfoLabels(t *testing.T) {
	families, err := NewRegistry(IO{}).Gather()
	if err != nil {
		t.Fatal(err)
	}
	labels := map[string]string{}
	for _, family := range families {
		if family.GetName() == "tandem_build_info" {
			for _, label := range family.GetMetric()[0].GetLabel() {
				labels[label.GetName()] = label.GetValue()
			}
			if family.GetMetric()[0].GetGauge().GetValue() != 1 {
				t.Errorf("tandem_build_info = %v", family)
			}
		}
	}
	v := ReadVersion()
	if labels["version"] != v.Number || labels["go_version"] != v.Go || len(labels) != 3 {
		t.Errorf("labels = %v", labels)
	}
}

func TestListenAll(t *testing.T) {
	free := Port{"port", "127.0.0.1:0"}
	all, err := ListenAll(t.Context(), free, free)
	if err != nil || len(all) != 2 || all[0].Addr().String() == all[1].Addr().String() {
		t.Fatalf("%v, %v", all, err)
	}
	for _, l := range all {
		defer l.Close()
	}
	spare, err := Listen(t.Context(), "port", free.Addr)
	if err != nil {
		t.Fatal(err)
	}
	addr := spare.Addr().String()
	spare.Close()
	if _, err := ListenAll(t.Context(), Port{"port", addr}, Port{"metrics-port", all[0].Addr().String()}); err == nil {
		t.Fatal("a port was taken twice")
	}
	again, err := Listen(t.Context(), "port", addr)
	if err != nil {
		t.Fatalf("a listener was left open: %v", err)
	}
	again.Close()
}
