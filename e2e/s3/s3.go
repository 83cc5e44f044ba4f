package s3

import (
	"bufio"
	"errors"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"testing"
	"time"
)

// patience bounds the start of the server.
const patience = 2 * time.Minute

// Server is a running server.
type Server struct {
	program string
	address string
	dir     string
	process *exec.Cmd
	ended   chan struct{}
}

// Credentials returns the environment of a program that uses the server.
func Credentials() []string { return []string{"AWS_ACCESS_KEY_ID=key", "AWS_SECRET_ACCESS_KEY=secret"} }

// SetCredentials has this process use the server until the end of the test, which cannot be parallel.
func SetCredentials(t *testing.T) {
	t.Helper()
	for _, variable := range Credentials() {
		name, value, _ := strings.Cut(variable, "=")
		t.Setenv(name, value)
	}
}

// Start starts a server, which runs until the end of the test.
func Start(t *testing.T) *Server {
	t.Helper()
	_, file, _, _ := runtime.Caller(0)
	program := filepath.Join(filepath.Dir(file), "..", "..", ".tools", "gofakes3", "gofakes3")
	if _, err := os.Stat(program); err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatalf("%v (make .tools/gofakes3 builds it)", err)
		}
		t.Skipf("%v (make .tools/gofakes3 builds it)", err)
	}
	s := &Server{program: program, dir: t.TempDir()}
	t.Cleanup(s.Kill)
	s.launch(t, "127.0.0.1:0")
	return s
}

var port = regexp.MustCompile(`using port: (\d+)`)

func (s *Server) launch(t *testing.T, at string) {
	t.Helper()
	process := exec.Command(s.program, "-host="+at, "-backend=bolt", "-bolt.db="+filepath.Join(s.dir, "objects.db"))
	log, err := process.StderrPipe()
	if err == nil {
		err = process.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	s.process, s.ended = process, make(chan struct{})
	found := make(chan string, 1)
	go func() {
		defer close(s.ended)
		for lines := bufio.NewScanner(log); lines.Scan(); {
			if m := port.FindStringSubmatch(lines.Text()); m != nil {
				found <- m[1]
			}
		}
		_ = process.Wait() // it is killed
	}()
	select {
	case number := <-found:
		s.address = "127.0.0.1:" + number
	case <-s.ended:
		t.Fatal("the server has ended")
	case <-time.After(patience):
		t.Fatal("the server does not say its port")
	}
}

// Kill kills the server. What it has confirmed stays.
func (s *Server) Kill() {
	_ = s.process.Process.Kill() // it may have ended
	<-s.ended
}

// Restart starts the server again at its address, after Kill.
func (s *Server) Restart(t *testing.T) {
	t.Helper()
	s.launch(t, s.address)
}

// Bucket makes a bucket, and returns its address.
func (s *Server) Bucket(t *testing.T, name string) string {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodPut, "http://"+s.address+"/"+name, strings.NewReader(""))
	if err != nil {
		t.Fatal(err)
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	answer, err := client.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	if err := answer.Body.Close(); err != nil || answer.StatusCode != http.StatusOK {
		t.Fatal(errors.Join(err, errors.New(answer.Status)))
	}
	return "s3://" + name + "?region=us-east-1&use_path_style=true&endpoint=http://" + s.address
}
