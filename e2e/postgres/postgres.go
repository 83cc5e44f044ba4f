package postgres

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"
	"testing"
	"time"

	_ "github.com/jackc/pgx/v5/stdlib" // the driver "pgx"
)

// overflowUID is the user without rights that every Linux has.
const overflowUID = "65534"

// patience bounds the start and the end of the server.
const patience = 2 * time.Minute

// Server is a running PostgreSQL.
type Server struct {
	t       *testing.T
	bin     string
	dir     string // of the data, and of the socket
	as      *syscall.Credential
	process *exec.Cmd
	ended   chan struct{}
	schemas int
}

// Start starts a server, which runs until the end of the test.
func Start(t *testing.T) *Server {
	t.Helper()
	installed, err := filepath.Glob("/usr/lib/postgresql/*/bin/initdb")
	if err != nil || len(installed) == 0 {
		if os.Getenv("CI") == "true" {
			t.Fatal("PostgreSQL is missing (Debian: apt-get install postgresql)")
		}
		t.Skip("PostgreSQL is missing (Debian: apt-get install postgresql)")
	}
	slices.Sort(installed)
	// The socket's path may have 107 bytes, which t.TempDir may exceed, and PostgreSQL does not run as root, who owns that.
	dir, err := os.MkdirTemp("", "tandem-postgres-")
	if err != nil {
		t.Fatal(err)
	}
	s := &Server{t: t, bin: filepath.Dir(installed[len(installed)-1]), dir: dir}
	t.Cleanup(func() {
		if s.process != nil {
			s.end(syscall.SIGINT)
		}
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	if os.Getuid() == 0 {
		s.as = credential(t, overflowUID)
		if err := os.Chown(dir, int(s.as.Uid), int(s.as.Gid)); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	initdb := exec.CommandContext(ctx, filepath.Join(s.bin, "initdb"), "--pgdata="+filepath.Join(dir, "data"), "--username=tandem", "--auth=trust", "--no-sync", "--encoding=UTF8", "--locale=C")
	s.prepare(initdb)
	if out, err := initdb.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	s.Restart()
	return s
}

func credential(t *testing.T, uid string) *syscall.Credential {
	t.Helper()
	u, err := user.LookupId(uid)
	if err != nil {
		t.Fatal(err)
	}
	number, err := strconv.ParseUint(u.Uid, 10, 32)
	if err != nil {
		t.Fatal(err)
	}
	gid, err := strconv.ParseUint(u.Gid, 10, 32)
	if err != nil {
		t.Fatal(err)
	}
	return &syscall.Credential{Uid: uint32(number), Gid: uint32(gid)}
}

func (s *Server) prepare(cmd *exec.Cmd) {
	cmd.Dir = s.dir
	// Of its own group, so that Ctrl-C in a terminal does not end it under the test.
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: s.as, Setpgid: true}
}

// Restart starts the server again, after Kill, and waits until it answers. Processes that have outlived the server for a moment hold its memory:
// it ends then, and is started once more.
func (s *Server) Restart() {
	s.t.Helper()
	db, err := sql.Open("pgx", s.Address())
	if err != nil {
		s.t.Fatal(err)
	}
	defer db.Close()
	late := time.After(patience)
	poll := time.NewTicker(50 * time.Millisecond)
	defer poll.Stop()
	s.launch()
	for {
		if err = db.PingContext(s.t.Context()); err == nil {
			return
		}
		select {
		case <-poll.C:
		case <-s.ended:
			<-poll.C
			s.launch()
		case <-late:
			text, _ := os.ReadFile(filepath.Join(s.dir, "log")) // err is the reason
			s.t.Fatalf("PostgreSQL does not answer: %v\n%s", err, text)
		}
	}
}

func (s *Server) launch() {
	s.t.Helper()
	process := exec.Command(filepath.Join(s.bin, "postgres"), "-D", filepath.Join(s.dir, "data"), "-k", s.dir, "-c", "listen_addresses=", "-c", "shared_buffers=16MB", "-c", "max_connections=200")
	s.prepare(process)
	log, err := os.OpenFile(filepath.Join(s.dir, "log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		s.t.Fatal(err)
	}
	process.Stdout, process.Stderr = log, log
	err = process.Start()
	if err = errors.Join(err, log.Close()); err != nil {
		s.t.Fatal(err)
	}
	ended := make(chan struct{})
	s.process, s.ended = process, ended
	go func() {
		defer close(ended)
		_ = process.Wait() // it is ended by a signal
	}()
}

// Kill kills the server. Its other processes end when they notice.
func (s *Server) Kill() { s.end(syscall.SIGKILL) }

func (s *Server) end(signal syscall.Signal) {
	_ = s.process.Process.Signal(signal) // it may have ended
	select {
	case <-s.ended:
	case <-time.After(patience):
		_ = s.process.Process.Kill()
		<-s.ended
	}
}

// Address returns the address of the server's database.
func (s *Server) Address() string {
	return fmt.Sprintf("host=%s user=tandem dbname=postgres sslmode=disable", s.dir)
}

// Schema returns the address of an empty schema.
func (s *Server) Schema() string {
	s.t.Helper()
	db, err := sql.Open("pgx", s.Address())
	if err != nil {
		s.t.Fatal(err)
	}
	defer db.Close()
	s.schemas++
	name := fmt.Sprintf("test%d", s.schemas)
	if _, err := db.ExecContext(s.t.Context(), "CREATE SCHEMA "+name); err != nil {
		s.t.Fatal(err)
	}
	return s.Address() + " search_path=" + name
}
