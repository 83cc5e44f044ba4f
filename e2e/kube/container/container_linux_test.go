package container

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// newTestSandbox returns a sandbox on a host of its own, until the test ends.
func newTestSandbox(t *testing.T, name string) *Sandbox {
	t.Helper()
	Require(t)
	h, err := NewHost(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := h.Close(); err != nil {
			t.Error(err)
		}
	})
	return addSandbox(t, h, name)
}

func addSandbox(t *testing.T, h *Host, name string) *Sandbox {
	t.Helper()
	s, err := h.NewSandbox(t.Context(), SandboxOptions{Name: name, Hostname: name + "-0", Nameservers: []string{"10.0.0.10"},
		Searches: []string{"ns.svc.cluster.local", "cluster.local"}})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// shell returns a container that runs a script as a user.
func shell(t *testing.T, script string) Spec {
	t.Helper()
	return Spec{Name: "shell", Image: testImage(t), Args: []string{"sh", "-c", script},
		Env: []string{"PATH=/usr/bin:/bin", "COLOUR=blue"}, UID: 65532, GID: 65532, ReadOnlyRoot: true}
}

// program returns a container that runs one of this test binary's.
func program(t *testing.T, name string, args ...string) Spec {
	t.Helper()
	s := shell(t, "")
	s.Name, s.Args = name, append([]string{"/program"}, args...)
	s.Env = []string{programVariable + "=" + name}
	return s
}

// said runs a container to its end and gives what it printed and its exit code.
func said(t *testing.T, s *Sandbox, spec Spec) (string, int) {
	t.Helper()
	var log bytes.Buffer
	spec.Log = &log
	c, err := s.Start(spec)
	if err != nil {
		t.Fatal(err)
	}
	await(t, c)
	code, _ := c.Exit()
	return log.String(), code
}

func await(t *testing.T, c *Container) {
	t.Helper()
	select {
	case <-c.Done():
	case <-time.After(patience):
		t.Fatalf("container %s does not end", c.spec.Name)
	}
}

// startReady starts a container and waits until it has printed a line.
func startReady(t *testing.T, s *Sandbox, spec Spec) *Container {
	t.Helper()
	return startLogged(t, s, spec, &lines{first: make(chan struct{})})
}

func startLogged(t *testing.T, s *Sandbox, spec Spec, log *lines) *Container {
	t.Helper()
	spec.Log = log
	c, err := s.Start(spec)
	if err != nil {
		t.Fatal(err)
	}
	select {
	case <-log.first:
	case <-time.After(patience):
		t.Fatalf("container %s does not say that it is ready", spec.Name)
	}
	return c
}

// lines tells when the first line is whole.
type lines struct {
	first chan struct{}
	all   []byte
}

func (l *lines) Write(p []byte) (int, error) {
	before := bytes.IndexByte(l.all, '\n')
	if l.all = append(l.all, p...); before < 0 && bytes.IndexByte(p, '\n') >= 0 {
		close(l.first)
	}
	return len(p), nil
}

// String is for when the container has ended.
func (l *lines) String() string { return string(l.all) }

func TestContainerSeesItsOwn(t *testing.T) {
	s := newTestSandbox(t, "own")
	text := filepath.Join(t.TempDir(), "text")
	if err := os.WriteFile(text, []byte("from a file\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	spec := shell(t, `echo pid $$ user $(id -u) $(id -g) groups $(id -G) colour $COLOUR dir $(pwd) host $(hostname)
		echo processes $(ls /proc | grep -c '^[0-9]')
		cat /etc/hosts /etc/hostname /etc/resolv.conf /deep/in/it/text
		grep -E '^(Cap|NoNewPrivs)' /proc/self/status
		echo hello > /dev/null && echo to stdout > /dev/stdout && echo to stderr >&2
		: > /deep/in/memory && : > /dev/shm/some && echo writes where it may
		exit 9`)
	spec.Dir, spec.Groups = "/deep", []int{2000}
	spec.Mounts = []Mount{{Source: text, Target: "/deep/in/it/text", ReadOnly: true}, {Target: "/deep/in"}}
	out, code := said(t, s, spec)
	if code != 9 {
		t.Errorf("it ended with %d, not 9", code)
	}
	for _, want := range []string{
		"pid 1 user 65532 65532 groups 65532 2000 colour blue dir /deep host own-0\n",
		"127.0.0.1 localhost\n", s.IP().String() + " own-0\n", "\nown-0\n",
		"nameserver 10.0.0.10\nsearch ns.svc.cluster.local cluster.local\noptions ndots:5\n",
		"from a file\n", "CapEff:\t0000000000000000\n", "CapBnd:\t0000000000000000\n", "CapInh:\t0000000000000000\n",
		"CapAmb:\t0000000000000000\n", "NoNewPrivs:\t1\n", "to stdout\n", "to stderr\n", "writes where it may\n",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("it did not say %q", want)
		}
	}
	_, count, _ := strings.Cut(out, "processes ")
	count, _, _ = strings.Cut(count, "\n")
	if n, err := strconv.Atoi(count); err != nil || n > 4 { // the shell, its subshell, ls, grep
		t.Errorf("it sees %q processes, and not only its own", count)
	}
	if t.Failed() {
		t.Logf("it said:\n%s", out)
	}
}

func TestRootOfAContainer(t *testing.T) {
	s := newTestSandbox(t, "root")
	const script = `for f in /some /tmp/some /file /etc/hosts /usr/bin/some /proc/sys/kernel/domainname /mounted/some; do
		if (: >> $f) 2> /dev/null; then echo wrote $f; fi; done`
	mounted := []Mount{{Source: t.TempDir(), Target: "/mounted", ReadOnly: true}}
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o666); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name     string
		uid      int
		readOnly bool
		want     string
	}{
		{"read-only", 0, true, ""},
		{"read-only user", 65532, true, ""},
		{"writable", 0, false, "wrote /some\nwrote /tmp/some\n"},
		{"writable user", 65532, false, "wrote /tmp/some\n"},
	} {
		t.Run(c.name, func(t *testing.T) {
			spec := shell(t, script)
			spec.UID, spec.GID, spec.ReadOnlyRoot, spec.Mounts = c.uid, c.uid, c.readOnly, mounted
			spec.Image.Files["/file"] = file
			if out, code := said(t, s, spec); out != c.want {
				t.Errorf("it said %q and ended with %d, want %q", out, code, c.want)
			}
		})
	}
	t.Run("root has no rights", func(t *testing.T) {
		spec := shell(t, `grep CapEff /proc/self/status; mount -t tmpfs none /tmp 2> /dev/null && echo mounted; exit 0`)
		spec.UID, spec.GID, spec.ReadOnlyRoot = 0, 0, false
		if out, _ := said(t, s, spec); out != "CapEff:\t0000000000000000\n" {
			t.Errorf("it said %q", out)
		}
	})
}

// TestImageFiles: folders and links of an image come along, and who may read what.
func TestImageFiles(t *testing.T) {
	s := newTestSandbox(t, "files")
	root := t.TempDir()
	for _, dir := range []string{"data/run", "secret"} {
		if err := os.MkdirAll(filepath.Join(root, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	err := errors.Join(os.WriteFile(filepath.Join(root, "data/text"), []byte("text\n"), 0o644),
		os.Symlink("/data/run", filepath.Join(root, "run")), os.Symlink("text", filepath.Join(root, "data/link")),
		os.WriteFile(filepath.Join(root, "secret/text"), []byte("secret\n"), 0o644),
		os.Chmod(filepath.Join(root, "secret"), 0o700))
	if err != nil {
		t.Fatal(err)
	}
	spec := shell(t, "cat /data/link /run/there/of /data/run/there/of; cat /secret/text 2> /dev/null || echo refused")
	spec.Image.Root = root
	volume := t.TempDir()
	if err := os.WriteFile(filepath.Join(volume, "of"), []byte("volume\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	spec.Mounts = []Mount{{Source: volume, Target: "/run/there"}} // through the image's link
	if out, _ := said(t, s, spec); out != "text\nvolume\nvolume\nrefused\n" {
		t.Errorf("it said %q", out)
	}
	if entries, err := os.ReadDir(filepath.Join(root, "data/run")); err != nil || len(entries) > 0 {
		t.Errorf("the image was changed: %v, %v", entries, err)
	}
}

func TestStartRefused(t *testing.T) {
	s := newTestSandbox(t, "refused")
	mount := func(m Mount) func(*Spec) { return func(s *Spec) { s.Mounts = []Mount{m} } }
	for _, c := range []struct {
		name   string
		change func(*Spec)
		is     error
		says   string
	}{
		{"no such program", func(s *Spec) { s.Args = []string{"/missing"} }, fs.ErrNotExist, "running /missing: no such file"},
		{"not in PATH", func(s *Spec) { s.Args = []string{"missing"} }, fs.ErrNotExist, "finding missing in /usr/bin:/bin"},
		{"not executable", func(s *Spec) { s.Args = []string{"/etc/hosts"} }, fs.ErrPermission, "running /etc/hosts: permission"},
		{"no loader", func(s *Spec) { s.Image.Shared, s.Args = []string{"/bin"}, []string{"/bin/sh"} }, fs.ErrNotExist, "loader"},
		{"nothing", func(s *Spec) { s.Args = nil }, nil, "nothing to run"},
		{"no such source", mount(Mount{Source: "/missing", Target: "/there"}), fs.ErrNotExist, "mounting /there: "},
		{"relative target", mount(Mount{Target: "there"}), nil, "mounting there: the path is not absolute"},
		{"target in a read-only folder", mount(Mount{Target: "/usr/bin/there"}), syscall.EROFS, "making /usr/bin/there"},
		{"no such image file", func(s *Spec) { s.Image.Root = "/missing" }, fs.ErrNotExist, "reading the image: "},
	} {
		t.Run(c.name, func(t *testing.T) {
			var log bytes.Buffer
			spec := shell(t, "exit 0")
			spec.Log = &log
			c.change(&spec)
			_, err := s.Start(spec)
			if err == nil || c.is != nil && !errors.Is(err, c.is) || !strings.Contains(err.Error(), c.says) {
				t.Errorf("Start gives %v, want %v and %q", err, c.is, c.says)
			}
			if log.Len() > 0 {
				t.Errorf("the log has %q, although nothing ran", &log)
			}
		})
	}
}

func TestSignals(t *testing.T) {
	s := newTestSandbox(t, "signals")
	c := startReady(t, s, program(t, "terminate"))
	if comm, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", c.PID())); err != nil || string(comm) != "program\n" {
		t.Errorf("process %d is %q: %v", c.PID(), comm, err)
	}
	if err := c.Signal(syscall.SIGTERM); err != nil {
		t.Error(err)
	}
	await(t, c)
	if code, sig := c.Exit(); code != 3 || sig != 0 {
		t.Errorf("after SIGTERM it ended with %d and signal %d, not with 3", code, sig)
	}
	if err := c.Signal(syscall.SIGTERM); !errors.Is(err, os.ErrProcessDone) {
		t.Errorf("a signal after its end: %v", err)
	}
	if err := c.Kill(); err != nil {
		t.Errorf("killing it after its end: %v", err)
	}
}

// TestKill: from the node, by the container's PID, what a crash would do.
func TestKill(t *testing.T) {
	s := newTestSandbox(t, "kill")
	c := startReady(t, s, program(t, "family"))
	children := descendants(t, c.PID())
	if len(children) != 1 {
		t.Fatalf("it has children %v, want one", children)
	}
	if err := syscall.Kill(c.PID(), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	await(t, c)
	if code, sig := c.Exit(); code != 137 || sig != syscall.SIGKILL {
		t.Errorf("it ended with %d and %v", code, sig)
	}
	for _, pid := range append(children, c.PID()) {
		if err := syscall.Kill(pid, 0); !errors.Is(err, syscall.ESRCH) {
			t.Errorf("process %d is still there: %v", pid, err)
		}
	}
}

func descendants(t *testing.T, pid int) (children []int) {
	t.Helper()
	files, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, word := range strings.Fields(string(text)) {
			child, err := strconv.Atoi(word)
			if err != nil {
				t.Fatal(err)
			}
			children = append(children, child)
		}
	}
	return children
}

// TestContainerOutlivesItsLog: a container goes on when its output is not read.
func TestContainerOutlivesItsLog(t *testing.T) {
	s := newTestSandbox(t, "log")
	spec := shell(t, "head -c 1000000 /dev/zero && exit 4; exit 5")
	read, write := io.Pipe()
	if err := read.Close(); err != nil {
		t.Fatal(err)
	}
	spec.Log = write
	c, err := s.Start(spec)
	if err != nil {
		t.Fatal(err)
	}
	await(t, c)
	if code, _ := c.Exit(); code != 4 {
		t.Errorf("it ended with %d", code)
	}
}
