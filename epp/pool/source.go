package pool

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/tandem-serving/tandem/epp"
)

// Source says where and how metrics pages are read: the parameters of llm-d's metrics-data-source. The zero Source reads
// none.
type Source struct {
	// Scheme is http or https.
	Scheme string `yaml:"scheme"`
	// Path is the path of the page, with a query if it needs one.
	Path string `yaml:"path"`
	// Port is the port of the page. Default 0: the port of the endpoint.
	Port int `yaml:"port"`
	// InsecureSkipVerify accepts every certificate, because engines sign their own. Default true.
	InsecureSkipVerify bool `yaml:"insecureSkipVerify"`
	// CACertPath is a PEM file of the authorities to trust instead of the system's. It needs InsecureSkipVerify to be false.
	CACertPath string `yaml:"caCertPath"`
	// ClientCertPath is a PEM file of the certificate that the picker shows to endpoints. It is read again for each connection, so that a
	// renewed one is used. Default "": the picker shows none.
	ClientCertPath string `yaml:"clientCertPath"`
	// ClientKeyPath is a PEM file of the key of ClientCertPath.
	ClientKeyPath string `yaml:"clientKeyPath"`
	// Interval is the time between two readings of a busy endpoint. Default 0: for metrics pages, as --refresh-metrics-interval says.
	// Values below 50ms are raised to that, as in llm-d.
	Interval time.Duration `yaml:"interval"`
}

// DefaultSource reads http://endpoint/metrics.
func DefaultSource() Source {
	return Source{Scheme: "http", Path: "/metrics", InsecureSkipVerify: true}
}

// Problems reports parameters that are invalid. It reads no file.
func (s *Source) Problems(report epp.Report) {
	if s.Scheme != "http" && s.Scheme != "https" {
		report("scheme", "must be http or https, got %q", s.Scheme)
	}
	if u, err := url.ParseRequestURI(s.Path); err != nil || !strings.HasPrefix(s.Path, "/") || u.Host != "" {
		report("path", "must be a URL path such as /metrics, got %q", s.Path)
	}
	if s.Port < 0 || s.Port > 65535 {
		report("port", "must be from 0 to 65535, got %d", s.Port)
	}
	if (s.ClientCertPath == "") != (s.ClientKeyPath == "") {
		report("clientKeyPath", "clientCertPath and clientKeyPath go together: one of them is empty")
	}
	if s.Interval < 0 {
		report("interval", "must not be negative, got %v", s.Interval)
	}
}

// transport makes the connections for reading pages. timeout is that of one scrape.
func (s *Source) transport(timeout time.Duration) (*http.Transport, error) {
	var problems []error
	s.Problems(func(field, format string, args ...any) {
		problems = append(problems, fmt.Errorf(field+": "+format, args...))
	})
	if err := errors.Join(problems...); err != nil {
		return nil, fmt.Errorf("reading the metrics source: %w", err)
	}
	secrets, err := s.tls()
	if err != nil {
		return nil, fmt.Errorf("reading the certificates of the metrics source: %w", err)
	}
	return &http.Transport{
		// It ends before the scrape does, so that an address that accepts no connection can be told from a slow page. There is no
		// proxy: endpoints are pods of the cluster.
		DialContext:            (&net.Dialer{Timeout: timeout * 9 / 10}).DialContext,
		TLSClientConfig:        secrets,
		TLSHandshakeTimeout:    timeout,
		DisableCompression:     true, // compression costs the engine and the picker more than the bytes
		MaxIdleConnsPerHost:    2,
		MaxConnsPerHost:        2,
		IdleConnTimeout:        6 * maxPause,
		MaxResponseHeaderBytes: 64 << 10,
		ReadBufferSize:         4 << 10, // pages bypass it, into a buffer of readSize
	}, nil
}

func (s *Source) tls() (*tls.Config, error) {
	c := &tls.Config{InsecureSkipVerify: s.InsecureSkipVerify}
	if s.CACertPath != "" {
		pem, err := os.ReadFile(s.CACertPath)
		if err != nil {
			return nil, err
		}
		c.RootCAs = x509.NewCertPool()
		if !c.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("%s holds no certificate", s.CACertPath)
		}
	}
	if s.ClientCertPath != "" {
		pair, err := tls.LoadX509KeyPair(s.ClientCertPath, s.ClientKeyPath)
		if err != nil {
			return nil, err
		}
		c.GetClientCertificate = renewed(s.ClientCertPath, s.ClientKeyPath, &pair)
	}
	return c, nil
}

// renewed returns the certificate and key that the files have at each handshake, and the last ones that could be read while the files
// cannot be: they are replaced one after the other. Handshakes are rare, because connections are kept.
func renewed(cert, key string, first *tls.Certificate) func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
	var last atomic.Pointer[tls.Certificate]
	last.Store(first)
	return func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
		if pair, err := tls.LoadX509KeyPair(cert, key); err == nil {
			last.Store(&pair)
		}
		return last.Load(), nil
	}
}

// checkHostPort checks the address of a metrics page.
func checkHostPort(text string) error {
	host, port, err := net.SplitHostPort(text)
	n, portErr := strconv.ParseUint(port, 10, 16)
	if errors.Join(err, portErr) != nil || n == 0 || host == "" || strings.ContainsAny(host, "/@?# ") {
		return fmt.Errorf("want host:port, IPv6 in brackets, got %q", text)
	}
	return nil
}

// request makes the request for the page at hostport.
func (s *Source) request(hostport string) (*http.Request, error) {
	if err := checkHostPort(hostport); err != nil {
		return nil, err
	}
	if s.Port != 0 {
		host, _, _ := net.SplitHostPort(hostport)
		hostport = net.JoinHostPort(host, strconv.Itoa(s.Port))
	}
	r, err := http.NewRequest(http.MethodGet, s.Scheme+"://"+hostport+s.Path, nil)
	if err != nil {
		return nil, err
	}
	r.Header.Set("Accept", "text/plain;version=0.0.4")
	r.Header.Set("Accept-Encoding", "identity")
	r.Header.Set("User-Agent", "tandem-epp")
	return r, nil
}
