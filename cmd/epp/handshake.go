package main

import (
	"crypto/tls"
	"errors"
	"log/slog"
	"net"
	"sync"

	"google.golang.org/grpc/credentials"
)

// secured is TLS that tells, once, of a gateway that does not speak it. Such a gateway only sees its connections end, and
// gRPC keeps failed handshakes to itself, so nobody would say why.
type secured struct {
	credentials.TransportCredentials
	log  *slog.Logger
	told *sync.Once
}

func newSecured(config *tls.Config, log *slog.Logger) secured {
	return secured{credentials.NewTLS(config), log, new(sync.Once)}
}

// ServerHandshake implements credentials.TransportCredentials.
func (s secured) ServerHandshake(raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	conn, info, err := s.TransportCredentials.ServerHandshake(raw)
	if _, plaintext := errors.AsType[tls.RecordHeaderError](err); plaintext {
		s.told.Do(func() {
			s.log.Warn("somebody does not speak TLS to the ext-proc port; if it is the gateway, give it TLS, or serve plaintext with --secure-serving=false",
				"from", raw.RemoteAddr(), "error", err)
		})
	}
	return conn, info, err
}

// Clone implements credentials.TransportCredentials.
func (s secured) Clone() credentials.TransportCredentials {
	return secured{s.TransportCredentials.Clone(), s.log, s.told}
}
