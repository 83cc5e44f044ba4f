package kubelet

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
)

// use is what a probe decides on.
type use string

const (
	startup   use = "Startup"
	readiness use = "Readiness"
	liveness  use = "Liveness"
)

// numbers are those of a probe that count its results.
type numbers struct{ success, failure int32 }

// judge turns the results of a probe into a verdict: it takes several in a row to change it.
type judge struct {
	numbers
	row     int32 // results in a row that were the same
	last    bool
	verdict bool // what holds now
}

// count takes a result, and tells whether it brought the verdict: a failed one may be brought again and again.
func (j *judge) count(good bool) (decided bool) {
	if j.row == 0 || j.last != good {
		j.row = 0
	}
	j.last = good
	j.row++
	need := max(1, j.failure)
	if good {
		need = max(1, j.success)
	}
	if j.row < need {
		return false
	}
	decided = j.verdict != good || !good
	j.verdict = good
	return decided
}

// target is the container that a probe or a hook asks.
type target struct {
	ip   string
	spec *corev1.Container
	exec func(ctx context.Context, argv []string) (output []byte, code int, err error)
}

// maxAnswer bounds what is read of an answer, in bytes: a kubelet's 10 KiB.
const maxAnswer = 10 << 10

// client asks over connections of its own, so that no answer depends on an earlier one. It follows redirects within a host.
func client() *http.Client {
	return &http.Client{
		Transport: &http.Transport{DisableKeepAlives: true, DisableCompression: true,
			TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}, // as documented: probes do not verify
		CheckRedirect: func(request *http.Request, via []*http.Request) error {
			if request.URL.Hostname() != via[0].URL.Hostname() || len(via) >= 10 {
				return http.ErrUseLastResponse
			}
			return nil
		},
	}
}

// check asks once. The error says why the answer is not good.
func (t target) check(ctx context.Context, p *corev1.ProbeHandler) error {
	switch {
	case p.HTTPGet != nil:
		code, err := t.get(ctx, p.HTTPGet)
		if err == nil && (code < 200 || code >= 400) {
			err = fmt.Errorf("HTTP probe failed with statuscode: %d", code)
		}
		return err
	case p.TCPSocket != nil:
		port, err := t.port(p.TCPSocket.Port)
		if err != nil {
			return err
		}
		conn, err := new(net.Dialer).DialContext(ctx, "tcp", net.JoinHostPort(or(p.TCPSocket.Host, t.ip), port))
		if err != nil {
			return err
		}
		return conn.Close()
	case p.Exec != nil:
		return t.run(ctx, p.Exec.Command)
	case p.GRPC != nil:
		return t.askHealth(ctx, p.GRPC)
	}
	return fmt.Errorf("%w: this kind of probe", errUnsupported)
}

func or(value, otherwise string) string {
	if value != "" {
		return value
	}
	return otherwise
}

// run runs a command in the container, which succeeds if it ends with 0.
func (t target) run(ctx context.Context, argv []string) error {
	output, code, err := t.exec(ctx, argv)
	switch {
	case err != nil && ctx.Err() != nil:
		return errors.New("command timed out")
	case err != nil:
		return err
	case code != 0:
		return fmt.Errorf("command ended with %d: %s", code, output[:min(len(output), maxAnswer)])
	}
	return nil
}

// get sends a request, and gives the status of the answer.
func (t target) get(ctx context.Context, action *corev1.HTTPGetAction) (code int, err error) {
	port, err := t.port(action.Port)
	if err != nil {
		return 0, err
	}
	path, err := url.Parse(action.Path)
	if err != nil {
		return 0, err
	}
	path.Scheme = "http"
	if action.Scheme == corev1.URISchemeHTTPS {
		path.Scheme = "https"
	}
	path.Host = net.JoinHostPort(or(action.Host, t.ip), port)
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, path.String(), nil)
	if err != nil {
		return 0, err
	}
	request.Header.Set("User-Agent", "kube-probe/1.36")
	request.Header.Set("Accept", "*/*")
	for _, h := range action.HTTPHeaders {
		if http.CanonicalHeaderKey(h.Name) == "Host" {
			request.Host = h.Value
			continue
		}
		request.Header.Set(h.Name, h.Value)
	}
	answer, err := client().Do(request)
	if err != nil {
		return 0, err
	}
	_, err = io.Copy(io.Discard, io.LimitReader(answer.Body, maxAnswer))
	return answer.StatusCode, errors.Join(err, answer.Body.Close())
}

func (t target) askHealth(ctx context.Context, action *corev1.GRPCAction) error {
	conn, err := grpc.NewClient("passthrough:///"+net.JoinHostPort(t.ip, strconv.Itoa(int(action.Port))),
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer conn.Close()
	service := ""
	if action.Service != nil {
		service = *action.Service
	}
	answer, err := healthpb.NewHealthClient(conn).Check(ctx, &healthpb.HealthCheckRequest{Service: service})
	if err != nil {
		return err
	}
	if answer.Status != healthpb.HealthCheckResponse_SERVING {
		return fmt.Errorf("service unhealthy (responded with %q)", answer.Status)
	}
	return nil
}

// port returns the number of a port that may be given by its name.
func (t target) port(p intstr.IntOrString) (string, error) {
	if p.Type == intstr.Int {
		return strconv.Itoa(p.IntValue()), nil
	}
	for _, named := range t.spec.Ports {
		if named.Name == p.StrVal {
			return strconv.Itoa(int(named.ContainerPort)), nil
		}
	}
	if _, err := strconv.Atoi(p.StrVal); err == nil {
		return p.StrVal, nil
	}
	return "", fmt.Errorf("%w: container %s has no port named %s", errUnsupported, t.spec.Name, p.StrVal)
}

// orSeconds returns a number of a probe as a time; the API server has filled in all that matter.
func orSeconds(n, otherwise int32) time.Duration {
	if n <= 0 {
		n = otherwise
	}
	return time.Duration(n) * time.Second
}

// follow asks again and again until the context ends. result is told of each answer, with its error, and of whether it
// brings a verdict.
func (t target) follow(ctx context.Context, p *corev1.Probe, good bool, result func(err error, decided bool)) {
	j := judge{numbers: numbers{p.SuccessThreshold, p.FailureThreshold}, verdict: good}
	wait := time.NewTimer(orSeconds(p.InitialDelaySeconds, 0))
	defer wait.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-wait.C:
		}
		wait.Reset(orSeconds(p.PeriodSeconds, 10))
		err := t.checkInTime(ctx, p)
		if ctx.Err() != nil {
			return
		}
		result(err, j.count(err == nil))
	}
}

func (t target) checkInTime(ctx context.Context, p *corev1.Probe) error {
	ctx, cancel := context.WithTimeout(ctx, orSeconds(p.TimeoutSeconds, 1))
	defer cancel()
	return t.check(ctx, &p.ProbeHandler)
}
