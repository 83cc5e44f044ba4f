package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/tandem-serving/tandem/cmd/internal/boottest"
)

// sizedBy is a configuration that sizes decode and prefill, at least so many replicas.
func sizedBy(decode, prefill int) string {
	return fmt.Sprintf(`{apiVersion: llm-d.ai/v1, kind: EndpointPickerConfig, plugins: [{type: active-request-scorer}, {type: replica-sizer, parameters: `+
		`{decode: {minReplicas: %d, maxReplicas: 9}, prefill: {minReplicas: %d, maxReplicas: 9}}}]}`, decode, prefill)
}

// ofDecode is ScaledObjectRef with the metadata {role: decode}: field 3, an entry of 14 bytes.
const ofDecode = "\x1a\x0e\n\x04role\x12\x06decode"

// asksKEDA asks for the number of decode replicas as KEDA does, and returns the answer's bytes.
func (s *served) asksKEDA(t *testing.T, security credentials.TransportCredentials) (string, error) {
	t.Helper()
	_, port, err := net.SplitHostPort(s.addresses["scaler"])
	must(t, err)
	conn, err := grpc.NewClient("localhost:"+port, grpc.WithTransportCredentials(security))
	must(t, err)
	defer conn.Close()
	asked, answer := new(emptypb.Empty), new(emptypb.Empty)
	asked.ProtoReflect().SetUnknown([]byte("\n\x10" + ofDecode)) // field 1 of GetMetricsRequest
	err = conn.Invoke(t.Context(), "/externalscaler.ExternalScaler/GetMetrics", asked, answer)
	return string(answer.ProtoReflect().GetUnknown()), err
}

// desires is GetMetricsResponse with so many replicas: fields 2 and 3 of a MetricValue without name, as an integer and as a double.
var desires = map[int]string{
	3: "\n\x0b\x10\x03\x19\x00\x00\x00\x00\x00\x00\x08\x40",
	5: "\n\x0b\x10\x05\x19\x00\x00\x00\x00\x00\x00\x14\x40",
}

func TestScalerTLS(t *testing.T) {
	certs := t.TempDir()
	boottest.KeyPair(t, certs, 1)
	authority := filepath.Join(certs, "tls.crt")
	pair, err := tls.LoadX509KeyPair(authority, filepath.Join(certs, "tls.key"))
	must(t, err)
	text, err := os.ReadFile(authority)
	must(t, err)
	trusted := x509.NewCertPool()
	trusted.AppendCertsFromPEM(text)
	anonymous, known := &tls.Config{RootCAs: trusted}, &tls.Config{RootCAs: trusted, Certificates: []tls.Certificate{pair}}
	for _, test := range []struct {
		name   string
		flags  []string
		client credentials.TransportCredentials
		code   codes.Code
	}{
		{"plaintext", nil, insecure.NewCredentials(), codes.OK},
		{"TLS", []string{"--scaler-cert-path=" + certs}, credentials.NewTLS(anonymous), codes.OK},
		{"plaintext where TLS is served", []string{"--scaler-cert-path=" + certs}, insecure.NewCredentials(), codes.Unavailable},
		{"mutual TLS", []string{"--scaler-cert-path=" + certs, "--scaler-client-ca=" + authority}, credentials.NewTLS(known), codes.OK},
		{"without the client's certificate", []string{"--scaler-cert-path=" + certs, "--scaler-client-ca=" + authority}, credentials.NewTLS(anonymous), codes.Unavailable},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := serve(t, append(test.flags, "--secure-serving=false", "--drain-timeout=1ms", "--scaler-address=127.0.0.1:0", "--config-text="+sizedBy(3, 1))...)
			if got, err := s.asksKEDA(t, test.client); status.Code(err) != test.code || err == nil && got != desires[3] {
				t.Errorf("%q, %v; want %q and %v", got, err, desires[3], test.code)
			}
		})
	}
}

// TestPickersAgreeOnSizes: KEDA asks pickers in turn, and each answers with the largest size of all.
func TestPickersAgreeOnSizes(t *testing.T) {
	flags := []string{"--secure-serving=false", "--drain-timeout=1ms", "--scaler-address=127.0.0.1:0", "--share-address=127.0.0.1:0"}
	large := serve(t, append(flags, "--config-text="+sizedBy(5, 1))...)
	small := serve(t, append(flags, "--config-text="+sizedBy(3, 1), "--share-with="+large.addresses["share"])...)
	small.mustShare(t, 1, 0)
	eventually(t, func() bool {
		got, err := small.asksKEDA(t, insecure.NewCredentials())
		return err == nil && got == desires[5]
	})
	if got, err := large.asksKEDA(t, insecure.NewCredentials()); err != nil || got != desires[5] {
		t.Errorf("%q, %v; want %q", got, err, desires[5])
	}
}

// TestSizesNeedAPlugin: without replica-sizer autoscalers are told what is missing, and after a reload with it they get sizes.
func TestSizesNeedAPlugin(t *testing.T) {
	file := filepath.Join(t.TempDir(), "config.yaml")
	write(t, file, fewestRequests)
	s := serve(t, "--secure-serving=false", "--drain-timeout=1ms", "--scaler-address=127.0.0.1:0", "--external-metrics-address=127.0.0.1:0", "--config-file="+file)
	if _, err := s.asksKEDA(t, insecure.NewCredentials()); status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), "no plugin replica-sizer") {
		t.Errorf("KEDA is told %v", err)
	}
	if code, text := s.asksMetric(t); code != http.StatusServiceUnavailable || !strings.Contains(text, "no plugin replica-sizer") {
		t.Errorf("the API server is told %d %s", code, text)
	}
	write(t, file, sizedBy(3, 1))
	eventually(t, func() bool {
		got, err := s.asksKEDA(t, insecure.NewCredentials())
		return err == nil && got == desires[3]
	})
	if code, text := s.asksMetric(t); code != http.StatusOK || !strings.Contains(text, `"value":"3"`) {
		t.Errorf("the API server is told %d %s", code, text)
	}
}

// asksMetric asks for the number of decode replicas as the API server does.
func (s *served) asksMetric(t *testing.T) (int, string) {
	t.Helper()
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: unverified("http/1.1"), DisableKeepAlives: true}}
	url := "https://" + s.addresses["external-metrics"] + "/apis/external.metrics.k8s.io/v1beta1/namespaces/any/tandem_desired_replicas?labelSelector=role%3Ddecode"
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	must(t, err)
	resp, err := client.Do(request)
	must(t, err)
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	must(t, err)
	return resp.StatusCode, string(text)
}

// TestFirstRequestWakesThePool: a request to a pool that is scaled to zero waits, KEDA is told at once that a replica is wanted, and the
// request is served by the endpoint that comes.
func TestFirstRequestWakesThePool(t *testing.T) {
	endpoints := filepath.Join(t.TempDir(), "endpoints.yaml")
	write(t, endpoints, "endpoints: []\n")
	s := serveWith(t, nil, "--secure-serving=false", "--drain-timeout=1ms", "--scaler-address=127.0.0.1:0",
		"--config-text="+strings.Replace(overEndpoints(endpoints, "noEndpointRequestTTL: 5m"), "- {type: decode-filter}",
			"- {type: decode-filter}\n- {type: replica-sizer, parameters: {decode: {minReplicas: 0}, prefill: {maxReplicas: 0}}}", 1))
	conn, err := grpc.NewClient(s.addresses["scaler"], grpc.WithTransportCredentials(insecure.NewCredentials()))
	must(t, err)
	defer conn.Close()
	ctx, leave := context.WithCancel(t.Context())
	defer leave()
	stream, err := conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true}, "/externalscaler.ExternalScaler/StreamIsActive")
	must(t, err)
	asked := new(emptypb.Empty)
	asked.ProtoReflect().SetUnknown([]byte(ofDecode))
	must(t, stream.SendMsg(asked))
	must(t, stream.CloseSend())
	active := func() bool {
		t.Helper()
		told := new(emptypb.Empty)
		must(t, stream.RecvMsg(told))
		return string(told.ProtoReflect().GetUnknown()) == "\x08\x01"
	}
	if active() {
		t.Error("a pool that no request has come to is active")
	}
	request := s.send(t)
	if !active() {
		t.Error("a request that waits does not wake the pool")
	}
	s.waiting(t, 1)
	write(t, endpoints, oneEndpoint)
	if reply := refusal(t, request); reply != nil {
		t.Errorf("the request is refused: %+v", reply)
	}
}
