package main

import (
	"crypto/tls"
	"errors"
	"log/slog"
	"net"
	"sync"

	"google.golang.org/grpc/credentials"
)

// secured is TLS that logs, once, a client that does not speak it. A gateway in plaintext only sees its connections end, and gRPC
// does not report failed handshakes.
type secured struct {
	credentials.TransportCredentials
	log  *slog.Logger
	once *sync.Once
}

func newSecured(config *tls.Config, log *slog.Logger) secured {
	return secured{credentials.NewTLS(config), log, new(sync.Once)}
}

// ServerHandshake implements credentials.TransportCredentials.
func (s secured) ServerHandshake(raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	conn, info, err := s.TransportCredentials.ServerHandshake(raw)
	if _, plaintext := errors.AsType[tls.RecordHeaderError](err); plaintext {
		s.once.Do(func() {
			s.log.Warn("a client of the ext-proc port does not speak TLS; if it is the gateway, give it TLS, or serve plaintext with --secure-serving=false",
				"from", raw.RemoteAddr(), "error", err)
		})
	}
	return conn, info, err
}

// Clone implements credentials.TransportCredentials.
func (s secured) Clone() credentials.TransportCredentials {
	return secured{s.TransportCredentials.Clone(), s.log, s.once}
}
