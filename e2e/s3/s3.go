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
	address string
	dir     string
	process *exec.Cmd
	ended   chan struct{}
}

// Start starts a server, which runs until the end of the test, and sets the credentials in the environment.
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
	t.Setenv("AWS_ACCESS_KEY_ID", "key")
	t.Setenv("AWS_SECRET_ACCESS_KEY", "secret")
	s := &Server{dir: t.TempDir()}
	t.Cleanup(func() {
		_ = s.process.Process.Kill() // it may have ended
		<-s.ended
	})
	s.launch(t, program, "127.0.0.1:0")
	return s
}

var port = regexp.MustCompile(`using port: (\d+)`)

func (s *Server) launch(t *testing.T, program, at string) {
	t.Helper()
	process := exec.Command(program, "-host="+at, "-backend=bolt", "-bolt.db="+filepath.Join(s.dir, "objects.db"))
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
