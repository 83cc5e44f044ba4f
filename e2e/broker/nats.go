package broker

import (
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// NATS is a running NATS server with JetStream. Each write is on disk before it is answered.
type NATS struct {
	t       testing.TB
	program string
	dir     string
	port    int
	running *process
}

// StartNATS starts a server, which runs until the end of the test.
func StartNATS(t testing.TB) *NATS {
	t.Helper()
	s := &NATS{t: t, program: filepath.Join(tool(t, "nats-server"), "nats-server"), dir: t.TempDir(), port: freePort(t)}
	config := "listen: 127.0.0.1:" + strconv.Itoa(s.port) + "\njetstream { store_dir: " + strconv.Quote(filepath.Join(s.dir, "data")) + ", sync_interval: always }\n"
	if err := os.WriteFile(filepath.Join(s.dir, "nats.conf"), []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Kill)
	s.Restart()
	return s
}

// Address is that of the server.
func (s *NATS) Address() string { return "nats://127.0.0.1:" + strconv.Itoa(s.port) }

// Client returns a client, which the end of the test closes.
func (s *NATS) Client() jetstream.JetStream {
	s.t.Helper()
	conn, err := nats.Connect(s.Address(), nats.MaxReconnects(-1), nats.ReconnectWait(nats.DefaultReconnectWait/20))
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(conn.Close)
	js, err := jetstream.New(conn)
	if err != nil {
		s.t.Fatal(err)
	}
	return js
}

// Kill kills the server.
func (s *NATS) Kill() {
	s.running.kill()
	s.running = nil
}

// Restart starts the server again, after Kill, with the same data and port, and waits until it answers.
func (s *NATS) Restart() {
	s.t.Helper()
	s.running = launch(s.t, s.dir, func() error {
		conn, err := nats.Connect(s.Address())
		if err != nil {
			return err
		}
		defer conn.Close()
		js, err := jetstream.New(conn)
		if err != nil {
			return err
		}
		_, err = js.AccountInfo(s.t.Context())
		return err
	}, s.program, "--config", filepath.Join(s.dir, "nats.conf"))
}
