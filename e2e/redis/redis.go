package redis

import (
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// patience bounds the start of the server.
const patience = 2 * time.Minute

// Server is a running Redis. Each write is on disk before it is answered.
type Server struct {
	t       testing.TB
	program string
	dir     string
	port    int
	process *exec.Cmd
	ended   chan struct{}
}

// Start starts a server, which runs until the end of the test.
func Start(t testing.TB) *Server {
	t.Helper()
	program, err := exec.LookPath("redis-server")
	if err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatal("Redis is missing (Debian: apt-get install redis-server)")
		}
		t.Skip("Redis is missing (Debian: apt-get install redis-server)")
	}
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &Server{t: t, program: program, dir: t.TempDir(), port: free.Addr().(*net.TCPAddr).Port}
	if err := free.Close(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Kill)
	s.Restart()
	return s
}

// Address is that of the server, as go-redis reads it.
func (s *Server) Address() string { return "redis://127.0.0.1:" + strconv.Itoa(s.port) + "/0" }

// Client returns a client, which the end of the test closes.
func (s *Server) Client() *redis.Client {
	s.t.Helper()
	options, err := redis.ParseURL(s.Address())
	if err != nil {
		s.t.Fatal(err)
	}
	client := redis.NewClient(options)
	s.t.Cleanup(func() { _ = client.Close() })
	return client
}

// Kill kills the server.
func (s *Server) Kill() {
	if s.process == nil {
		return
	}
	_ = s.process.Process.Signal(syscall.SIGKILL) // it may have ended
	<-s.ended
	s.process = nil
}

// Restart starts the server again, after Kill, with the same data and port, and waits until it answers.
func (s *Server) Restart() {
	s.t.Helper()
	process := exec.Command(s.program, "--bind", "127.0.0.1", "--port", strconv.Itoa(s.port), "--dir", s.dir, "--appendonly", "yes", "--appendfsync", "always", "--save", "")
	// Of its own group, so that Ctrl-C in a terminal does not end it under the test.
	process.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	log, err := os.OpenFile(filepath.Join(s.dir, "log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		s.t.Fatal(err)
	}
	defer log.Close()
	process.Stdout, process.Stderr = log, log
	if err := process.Start(); err != nil {
		s.t.Fatal(err)
	}
	ended := make(chan struct{})
	s.process, s.ended = process, ended
	go func() {
		defer close(ended)
		_ = process.Wait() // it is killed
	}()
	client := redis.NewClient(&redis.Options{Addr: "127.0.0.1:" + strconv.Itoa(s.port), MaxRetries: -1})
	defer client.Close()
	late := time.After(patience)
	poll := time.NewTicker(20 * time.Millisecond)
	defer poll.Stop()
	for {
		if err = client.Ping(s.t.Context()).Err(); err == nil {
			return
		}
		select {
		case <-poll.C:
		case <-ended:
			text, _ := os.ReadFile(filepath.Join(s.dir, "log")) // err is the reason
			s.t.Fatalf("Redis has ended: %s", text)
		case <-late:
			s.t.Fatalf("Redis does not answer: %v", err)
		}
	}
}
