package main

import (
	"log/slog"
	"net"
	"net/http"
	"os"

	"github.com/tandem-serving/tandem/cmd/internal/boot"
	"github.com/tandem-serving/tandem/epp/capture"
	"github.com/tandem-serving/tandem/epp/replica"
)

// share says with which other replicas of the picker loads in flight, queues and prompts are exchanged.
type share struct {
	With    []string `flag:"share-with" arg:"HOST:PORT[,…]" help:"share addresses of the other replicas of the picker, whose requests then count as load, as this picker's count for them; a name is looked up every two seconds and may stand for all of them, this one included. Empty: each replica knows of its own requests only"`
	Address string   `flag:"share-address" arg:"HOST:PORT" help:"address where other replicas ask for this picker's load in flight; empty: none may ask"`
	CertDir string   `flag:"share-cert-path" arg:"DIR" help:"directory with tls.crt and tls.key that replicas show each other, for the host of --share-with, read again when they change; empty: without TLS, for networks in which only pickers reach the port"`
	Key     string   `flag:"share-key-file" arg:"FILE" help:"secret with which all replicas hash prompts, so that they can tell each other where they sent which, for approx-prefix-cache-producer; the same file as --capture-key-file, if both are given. Empty: each replica knows of its own prompts only"`
	CA      string   `flag:"share-ca" arg:"FILE" help:"authorities that must have signed the certificates of replicas, read again when it changes; required with --share-cert-path"`
}

func (s *share) validate(p *boot.Problems) {
	for _, with := range s.With {
		host, port, err := net.SplitHostPort(with)
		p.Require(err == nil && host != "" && port != "", "share-with", "%q is no HOST:PORT", with)
	}
	if s.Address != "" {
		p.RequireAddress("share-address", s.Address)
	}
	_, err := s.key()
	p.Require(err == nil, "share-key-file", "%w", err)
	p.Require(s.Key == "" || len(s.With) > 0 || s.Address != "", "share-key-file", "is of no use without --share-with or --share-address")
	p.Require((s.CertDir == "") == (s.CA == ""), "share-ca", "must be given with --share-cert-path, and only then: replicas verify each other")
	if s.CertDir != "" && s.CA != "" {
		_, err := boot.ServerTLS(s.CertDir, s.CA, slog.New(slog.DiscardHandler))
		p.Require(err == nil, "share-cert-path", "%w", err)
	}
}

// key returns the key with which replicas hash prompts alike; nil: each has its own.
func (s *share) key() (*capture.Key, error) {
	if s.Key == "" {
		return nil, nil
	}
	secret, err := os.ReadFile(s.Key)
	if err != nil {
		return nil, err
	}
	return capture.ParseKey(secret)
}

// nameOf returns the name of a key, "" if it is nil.
func nameOf(key *capture.Key) string {
	if key == nil {
		return ""
	}
	return key.Name()
}

// exchange returns what exchanges the state of pickers with other replicas; nil: nothing does. o has all but what the flags say.
func (s *share) exchange(o replica.Options) (*replica.Exchange, error) {
	if len(s.With) == 0 && s.Address == "" {
		return nil, nil
	}
	o.With = s.With
	if s.CertDir != "" {
		var err error
		if o.TLS, err = boot.ClientTLS(boot.PeerTLS{CAFile: s.CA, CertDir: s.CertDir}, o.Log); err != nil {
			return nil, err
		}
	}
	return replica.New(o), nil
}

// service returns the port where other replicas ask. l is its listener.
func (s *share) service(x *replica.Exchange, l net.Listener, log *slog.Logger) (boot.Service, error) {
	service := boot.Service{Name: "share", Listener: l, Handler: x.Handler()}
	if s.CertDir != "" {
		var err error
		if service.TLS, err = boot.ServerTLS(s.CertDir, s.CA, log); err != nil {
			return boot.Service{}, err
		}
		service.TLS.NextProtos = []string{"http/1.1"}
	}
	return service, nil
}

// debugReplicas shows the other replicas whose load counts.
func (p *picker) debugReplicas(w http.ResponseWriter, _ *http.Request) {
	state := struct {
		Sharing  bool            `json:"sharing"`
		Replicas []replica.State `json:"replicas"`
		Lost     uint64          `json:"lost"` // connections that have ended by themselves
	}{Replicas: []replica.State{}}
	if x := p.exchange; x != nil {
		state.Sharing = true
		all, lost := x.States()
		state.Replicas, state.Lost = append(state.Replicas, all...), lost
	}
	writeJSON(w, state)
}
