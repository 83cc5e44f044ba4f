package broker

import (
	"strconv"
	"testing"

	"github.com/redis/go-redis/v9"
)

// Redis is a running Redis. Each write is on disk before it is answered.
type Redis struct {
	t       testing.TB
	program string
	dir     string
	port    int
	running *process
}

// StartRedis starts a server, which runs until the end of the test.
func StartRedis(t testing.TB) *Redis {
	t.Helper()
	s := &Redis{t: t, program: installed(t, "redis-server", "redis-server"), dir: t.TempDir(), port: freePort(t)}
	t.Cleanup(s.Kill)
	s.Restart()
	return s
}

// Address is that of the server, as go-redis reads it.
func (s *Redis) Address() string { return "redis://" + s.host() + "/0" }

func (s *Redis) host() string { return "127.0.0.1:" + strconv.Itoa(s.port) }

// Client returns a client, which the end of the test closes.
func (s *Redis) Client() *redis.Client {
	client := redis.NewClient(&redis.Options{Addr: s.host()})
	s.t.Cleanup(func() { _ = client.Close() })
	return client
}

// Kill kills the server.
func (s *Redis) Kill() {
	s.running.kill()
	s.running = nil
}

// Restart starts the server again, after Kill, with the same data and port, and waits until it answers.
func (s *Redis) Restart() {
	s.t.Helper()
	client := redis.NewClient(&redis.Options{Addr: s.host(), MaxRetries: -1})
	defer client.Close()
	s.running = launch(s.t, s.dir, func() error { return client.Ping(s.t.Context()).Err() },
		s.program, "--bind", "127.0.0.1", "--port", strconv.Itoa(s.port), "--dir", s.dir, "--appendonly", "yes", "--appendfsync", "always", "--save", "")
}
