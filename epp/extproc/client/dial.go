package client

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	extproc "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/resolver"
	"google.golang.org/grpc/resolver/manual"
)

// maxFrame bounds one frame from a server (bytes). Envoy has no bound; the protocol advises pickers to send 64 KiB at most.
const maxFrame = 128 << 20

// Options are the addresses and the security of the pickers.
type Options struct {
	// Addresses are the host:port of all replicas. Streams go to the reachable ones in turn.
	Addresses []string
	Plaintext bool
	// CAFile has the certificates (PEM) one of which must have signed the picker's. "" accepts any certificate, because pickers
	// sign their own by default.
	CAFile string
}

// Conn is the connection to one picker, or to its replicas. It is safe for concurrent use.
type Conn struct {
	conn *grpc.ClientConn
	stub extproc.ExternalProcessorClient
}

// Dial prepares the connection. The first stream makes it. The error is about the options.
func Dial(o Options) (*Conn, error) {
	if len(o.Addresses) == 0 {
		return nil, errors.New("dialling the endpoint picker: no address given")
	}
	security, err := o.credentials()
	if err != nil {
		return nil, fmt.Errorf("dialling the endpoint picker: %w", err)
	}
	replicas := manual.NewBuilderWithScheme("picker")
	state := resolver.State{}
	for _, address := range o.Addresses {
		host, _, err := net.SplitHostPort(address)
		if err != nil {
			return nil, fmt.Errorf("dialling the endpoint picker: %w", err)
		}
		state.Addresses = append(state.Addresses, resolver.Address{Addr: address, ServerName: host})
	}
	replicas.InitialState(state)
	conn, err := grpc.NewClient("picker:///", grpc.WithResolvers(replicas), grpc.WithTransportCredentials(security),
		grpc.WithDefaultServiceConfig(`{"loadBalancingConfig":[{"round_robin":{}}]}`),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: backoff.Config{
			BaseDelay: 50 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: time.Second}, MinConnectTimeout: time.Second}),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxFrame)))
	if err != nil {
		return nil, fmt.Errorf("dialling the endpoint picker: %w", err)
	}
	return &Conn{conn, extproc.NewExternalProcessorClient(conn)}, nil
}

func (o Options) credentials() (credentials.TransportCredentials, error) {
	switch {
	case o.Plaintext:
		return insecure.NewCredentials(), nil
	case o.CAFile == "":
		return credentials.NewTLS(&tls.Config{InsecureSkipVerify: true}), nil
	}
	pem, err := os.ReadFile(o.CAFile)
	if err != nil {
		return nil, err
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("%s contains no certificate", o.CAFile)
	}
	return credentials.NewTLS(&tls.Config{RootCAs: roots}), nil
}

// Close ends the connection and all its streams.
func (c *Conn) Close() error { return c.conn.Close() }

// Open opens the stream of one HTTP request for one filter. The caller must close it.
func (c *Conn) Open(ctx context.Context, f Filter) (*Stream, error) {
	if f.mark != "" {
		ctx = metadata.AppendToOutgoingContext(ctx, MetadataFilter, string(f.mark))
	}
	ctx, cancel := context.WithCancel(ctx)
	frames, err := c.stub.Process(ctx)
	if err != nil {
		cancel()
		return nil, fmt.Errorf("opening an ext-proc stream: %w", err)
	}
	return newStream(f, frames, cancel), nil
}
