package kubelet

import (
	"bufio"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"strconv"
	"time"
)

// server is the part of a kubelet's API that kubectl logs needs.
type server struct {
	node     *Node
	listener net.Listener
	http     *http.Server
	done     chan struct{}
}

// serve begins to serve, at the node's address.
func serve(n *Node) (*server, error) {
	certificate, err := selfSigned(n.options.Address.String())
	if err != nil {
		return nil, err
	}
	l, err := net.Listen("tcp", net.JoinHostPort(n.options.Address.String(), "0"))
	if err != nil {
		return nil, err
	}
	s := &server{node: n, listener: l, done: make(chan struct{})}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /containerLogs/{namespace}/{pod}/{container}", s.logs)
	s.http = &http.Server{Handler: mux, ReadHeaderTimeout: callLimit,
		TLSConfig:   &tls.Config{Certificates: []tls.Certificate{certificate}},
		BaseContext: func(net.Listener) context.Context { return n.life }}
	go func() {
		defer close(s.done)
		if err := s.http.ServeTLS(l, "", ""); !errors.Is(err, http.ErrServerClosed) {
			n.options.Log.Error("the node serves no logs any more", "error", err)
		}
	}()
	return s, nil
}

func (s *server) port() int32 { return int32(s.listener.Addr().(*net.TCPAddr).Port) }

func (s *server) close() {
	if err := s.http.Close(); err != nil {
		s.node.options.Log.Warn("the server of logs was not closed", "error", err)
	}
	<-s.done
}

// selfSigned makes a certificate that is not verified.
func selfSigned(address string) (tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, err
	}
	now := time.Now()
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: now.Add(-time.Hour),
		NotAfter: now.Add(24 * time.Hour), IPAddresses: []net.IP{net.ParseIP(address)}}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return tls.Certificate{}, err
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, nil
}

// logs serves what a container printed.
func (s *server) logs(w http.ResponseWriter, r *http.Request) {
	l, err := s.find(r)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	f, err := os.Open(l.path)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	defer f.Close()
	p, err := printerOf(w, r)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	// An error now is that of a client that has gone, or shows in a log that ends early.
	_ = p.print(r.Context(), l, f)
}

// find returns the log that is asked for.
func (s *server) find(r *http.Request) (*logFile, error) {
	namespace, pod, name := r.PathValue("namespace"), r.PathValue("pod"), r.PathValue("container")
	worker, err := s.node.find(namespace, pod)
	if err != nil {
		return nil, err
	}
	worker.public.mu.Lock()
	defer worker.public.mu.Unlock()
	logs, running := worker.public.logs[name], worker.public.running[name] != nil
	previous, _ := strconv.ParseBool(r.FormValue("previous"))
	switch {
	case !previous && len(logs) > 0:
		return logs[0], nil
	case !previous:
		return nil, fmt.Errorf("container %q in pod %q is waiting to start", name, pod)
	case running && len(logs) > 1:
		return logs[1], nil
	case !running && len(logs) > 0:
		return logs[0], nil
	}
	return nil, fmt.Errorf("previous terminated container %q in pod %q not found", name, pod)
}

// printer writes a log as the query of a request wants it.
type printer struct {
	to     *bufio.Writer
	flush  func() error
	follow bool
	stamps bool
	since  time.Time
	tail   int   // lines at the end that are wanted; -1: all
	limit  int64 // bytes; -1: no limit
}

func printerOf(w http.ResponseWriter, r *http.Request) (*printer, error) {
	p := &printer{to: bufio.NewWriter(w), tail: -1, limit: -1}
	p.flush = func() error { return errors.Join(p.to.Flush(), http.NewResponseController(w).Flush()) }
	var err error
	number := func(name string, set func(int64)) {
		if value := r.FormValue(name); value != "" {
			n, wrong := strconv.ParseInt(value, 10, 64)
			if wrong != nil || n < 0 {
				err = fmt.Errorf("%s=%q is no number", name, value)
				return
			}
			set(n)
		}
	}
	number("tailLines", func(n int64) { p.tail = int(n) })
	number("limitBytes", func(n int64) { p.limit = n })
	number("sinceSeconds", func(n int64) { p.since = time.Now().Add(-time.Duration(n) * time.Second) })
	if value := r.FormValue("sinceTime"); value != "" && err == nil {
		p.since, err = time.Parse(time.RFC3339, value)
	}
	p.follow, _ = strconv.ParseBool(r.FormValue("follow"))
	p.stamps, _ = strconv.ParseBool(r.FormValue("timestamps"))
	return p, err
}

// errEnough is that no more is wanted.
var errEnough = errors.New("the limit is reached")

// print writes what is there, and what comes if that is wanted.
func (p *printer) print(ctx context.Context, l *logFile, f *os.File) error {
	size, closed, grown := l.state()
	at, err := p.begin(f, size)
	for err == nil {
		if err = p.lines(io.NewSectionReader(f, at, size-at)); err != nil {
			break
		}
		if err = p.flush(); err != nil || closed || !p.follow {
			break
		}
		at = size
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-grown:
		}
		size, closed, grown = l.state()
	}
	return errors.Join(err, p.flush())
}

// begin finds where the lines begin that are wanted.
func (p *printer) begin(f *os.File, size int64) (at int64, err error) {
	if p.tail < 0 {
		return 0, nil
	}
	var starts []int64 // of the last lines
	lines := bufio.NewReader(io.NewSectionReader(f, 0, size))
	for {
		line, err := lines.ReadSlice('\n')
		if err != nil && len(line) == 0 {
			break
		}
		if starts = append(starts, at); len(starts) > p.tail {
			starts = starts[1:]
		}
		at += int64(len(line))
	}
	if len(starts) > 0 {
		at = starts[0]
	}
	return at, nil
}

// lines writes lines of the file, of which there are only whole ones.
func (p *printer) lines(from io.Reader) error {
	scanner := bufio.NewScanner(from)
	scanner.Buffer(nil, 2*maxLine)
	for scanner.Scan() {
		e := parseEntry(scanner.Bytes())
		if e.when.Before(p.since) {
			continue
		}
		text := e.text
		if p.stamps {
			text = append([]byte(e.when.Format(logTime)+" "), text...)
		}
		if p.limit >= 0 && int64(len(text)) > p.limit {
			text = text[:p.limit]
		}
		if _, err := p.to.Write(text); err != nil {
			return err
		}
		if p.limit >= 0 {
			if p.limit -= int64(len(text)); p.limit == 0 {
				return errEnough
			}
		}
	}
	return scanner.Err()
}
