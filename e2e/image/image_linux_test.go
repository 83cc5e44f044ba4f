package image_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
	"unsafe"
)

// TestMain makes the test binary the one who starts an image's program, when it is told so.
func TestMain(m *testing.M) {
	if text, ok := os.LookupEnv(containerVariable); ok {
		fmt.Fprintln(os.Stderr, enter(text))
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// imageVersion is what the images are built as.
const imageVersion = "v1.2.3-test"

// ran are the images and how their servers are started. An image that is not here fails the test.
var ran = map[string]struct {
	args  []string
	ready string // purpose of an address in the ready line; "": the image serves nothing
}{
	"epp":          {[]string{"--endpoints-file=/etc/tandem/endpoints.yaml"}, "extproc"},
	"sidecar":      {nil, "http"},
	"sidecar-nixl": {nil, "http"},
	"batch":        {[]string{"--host=0.0.0.0", "--data=/data", "--upstream=http://127.0.0.1:1"}, "http"},
	"sim":          {[]string{"--host=0.0.0.0", "--side-channel-address=127.0.0.1:5600"}, "http"},
	"tandem":       {nil, ""},
}

// TestImages builds the images without a container engine, and runs them as a cluster does that enforces the restricted
// level: as a user without rights, on a read-only root that has nothing but what the image has. That is less than a runtime
// gives, which adds /proc, /dev and some files in /etc.
func TestImages(t *testing.T) {
	if testing.Short() {
		t.Skip("compiles every program again: make test-all does")
	}
	d := readDockerfile(t)
	built := map[string]string{}
	for _, s := range d.stages {
		if d.root(s.name).from != "scratch" && (s.name != "wheel" || nixlFetched(t)) {
			built[s.name] = buildStage(t, d, s.name)
		}
	}
	for _, target := range d.targets() {
		how, known := ran[target]
		if !known {
			t.Errorf("target %s: no row of this test says how to run it", target)
			continue
		}
		t.Run(target, func(t *testing.T) {
			if target == "sidecar-nixl" && built["wheel"] == "" {
				t.Skip("the NIXL library is missing: make .tools/nixl fetches it")
			}
			image := assemble(t, d.flat(target), built)
			if target == "batch" {
				image.mount(t, "/data", t.TempDir())
			}
			if target == "sidecar-nixl" {
				t.Run("keeper alone", image.probe)
				t.Run("keeper", func(t *testing.T) { image.keep(t, "--keeper=/keeper") })
				t.Run("keeper for simulated engines", func(t *testing.T) {
					image.keep(t, "--keeper=/keeper-sim", "--keeper-transport=tcp")
				})
			}
			t.Run("version", func(t *testing.T) {
				if out := image.run(t, "--version"); !strings.Contains(out, imageVersion) {
					t.Errorf("it says %q, and not its version %s", out, imageVersion)
				}
			})
			if how.ready != "" {
				t.Run("server", func(t *testing.T) { image.serve(t, how.ready, how.args) })
			}
		})
	}
	t.Run("drain installs itself", func(t *testing.T) {
		image := assemble(t, d.flat("tandem"), built)
		tools := filepath.Join(image.mount(t, "/tools", t.TempDir()), "tandem")
		image.mount(t, "/proc", "/proc") // it looks there for itself
		image.run(t, "drain", "--install", "/tools")
		if info, err := os.Stat(tools); err != nil || info.Mode().Perm()&0o111 != 0o111 {
			t.Errorf("%s: %v, %v", tools, info, err)
		}
	})
}

// buildStage runs a stage's instructions in a folder that stands for its root. What comes with its base image is taken from
// this machine.
func buildStage(t *testing.T, d *dockerfile, name string) (root string) {
	t.Helper()
	root = t.TempDir()
	source, dir := t.TempDir(), root
	contextOf(t, source)
	env := append(os.Environ(), "GOFLAGS=", "GOWORK=off")
	values := map[string]string{"TARGETOS": "linux", "TARGETARCH": runtime.GOARCH, "VERSION": imageVersion}
	for _, i := range d.stage(name).steps {
		switch i.word {
		case "FROM":
		case "ARG":
			arg, value, _ := strings.Cut(i.args, "=")
			if v, ok := values[arg]; ok {
				value = v
			}
			env = append(env, arg+"="+value)
		case "WORKDIR":
			dir = filepath.Join(root, i.args)
			if err := os.MkdirAll(dir, 0o755); err != nil {
				t.Fatal(err)
			}
		case "COPY":
			copyAll(t, source, dir, strings.Fields(i.args))
		case "RUN":
			if strings.Contains(i.args, "pip download") {
				packWheel(t, dir)
				continue
			}
			// The only absolute path that a command may write to.
			run := exec.CommandContext(t.Context(), "sh", "-c", strings.ReplaceAll(i.args, " /out/", " "+root+"/out/"))
			run.Dir, run.Env = dir, env
			if out, err := run.CombinedOutput(); err != nil {
				t.Fatalf("Dockerfile line %d: %v\n%s", i.line, err, out)
			}
		default:
			t.Fatalf("Dockerfile line %d: this test does not know %s", i.line, i.word)
		}
	}
	return root
}

// copyAll copies files, and what is in folders, to the last of paths, which is a folder if it ends in a slash, or if a
// folder is copied.
func copyAll(t *testing.T, source, dir string, paths []string) {
	t.Helper()
	last := paths[len(paths)-1]
	to, folder := filepath.Join(dir, last), strings.HasSuffix(last, "/")
	for _, from := range paths[:len(paths)-1] {
		from = filepath.Join(source, from)
		err := filepath.WalkDir(from, func(file string, e fs.DirEntry, err error) error {
			if err != nil || e.IsDir() {
				return err
			}
			in, err := filepath.Rel(from, file)
			if err != nil {
				return err
			}
			if in == "." && folder {
				in = filepath.Base(file)
			}
			return copyFile(file, filepath.Join(to, in))
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}

// image is one that lies in a folder.
type image struct {
	Root   string
	Entry  string
	Env    []string
	Mounts map[string]string // in the image: what is mounted there, writable

	exposed []string
}

// assemble makes the image of instructions that follow on an empty root.
func assemble(t *testing.T, steps []instruction, built map[string]string) *image {
	t.Helper()
	i := &image{Root: t.TempDir(), Mounts: map[string]string{}, exposed: exposed(steps)}
	for _, step := range steps {
		switch step.word {
		case "FROM", "USER", "ARG", "LABEL", "EXPOSE":
		case "COPY":
			paths := strings.Fields(step.args)
			from := filepath.Join(built[step.flags["from"]], paths[0])
			if _, err := os.Stat(from); err != nil {
				from = paths[0] // of the base image
			}
			copyAll(t, "", i.Root, []string{from, paths[1]})
		case "ENV":
			i.Env = append(i.Env, strings.Fields(step.args)...)
		case "ENTRYPOINT":
			i.Entry = entryPoint.FindStringSubmatch(step.args)[1]
		default:
			t.Fatalf("Dockerfile line %d: this test does not know %s", step.line, step.word)
		}
	}
	i.mustBeReadable(t)
	return i
}

// mustBeReadable fails if a user who owns nothing could not read or run something: the one who runs it here owns it all.
func (i *image) mustBeReadable(t *testing.T) {
	t.Helper()
	err := filepath.WalkDir(i.Root, func(file string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := e.Info()
		want := fs.FileMode(0o004)
		if e.IsDir() || file == filepath.Join(i.Root, i.Entry) {
			want = 0o005
		}
		if err == nil && info.Mode().Perm()&want != want && file != i.Root {
			t.Errorf("%s has mode %v", file, info.Mode())
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// mount shows a folder to the image at a path, as a volume.
func (i *image) mount(t *testing.T, at, dir string) string {
	t.Helper()
	if err := os.MkdirAll(filepath.Join(i.Root, at), 0o755); err != nil {
		t.Fatal(err)
	}
	i.Mounts[at] = dir
	return dir
}

// command returns the entry point with arguments, in namespaces of its own in which there is only one user.
func (i *image) command(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	id, err := strconv.Atoi(user)
	if err != nil {
		t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	spec, err := json.Marshal(i)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	cmd := exec.CommandContext(ctx, self, args...)
	cmd.Env = []string{containerVariable + "=" + string(spec)}
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = 10 * time.Second
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWUSER | syscall.CLONE_NEWNS | syscall.CLONE_NEWNET,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: id, HostID: os.Getuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: id, HostID: os.Getgid(), Size: 1}},
		AmbientCaps: []uintptr{capSysAdmin, capNetAdmin},
		Pdeathsig:   syscall.SIGKILL,
	}
	return cmd
}

// unprivileged ends a test where this machine allows no namespaces.
func unprivileged(t *testing.T, err error) {
	t.Helper()
	if os.Getenv("CI") == "true" {
		t.Fatalf("running an image in namespaces: %v (allow user namespaces, or run the tests as root)", err)
	}
	t.Skipf("running an image in namespaces: %v (allow user namespaces, or run the tests as root)", err)
}

// run runs the entry point to its end.
func (i *image) run(t *testing.T, args ...string) string {
	t.Helper()
	cmd := i.command(t, args...)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		unprivileged(t, err)
	}
	if err := cmd.Wait(); err != nil {
		t.Fatalf("%s %s: %v\n%s", i.Entry, strings.Join(args, " "), err, out.Bytes())
	}
	return out.String()
}

// serve starts the entry point as a server, sees what it may and what it listens on, and stops it.
func (i *image) serve(t *testing.T, purpose string, args []string) {
	t.Helper()
	endpoints := filepath.Join(i.mount(t, "/etc/tandem", t.TempDir()), "endpoints.yaml")
	if err := os.WriteFile(endpoints, []byte("endpoints: []\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	cmd := i.command(t, args...)
	var said bytes.Buffer
	cmd.Stderr = &said
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		unprivileged(t, err)
	}
	line, readErr := bufio.NewReader(out).ReadBytes('\n')
	if readErr == nil {
		i.inspect(t, cmd.Process.Pid, line, purpose)
	}
	stopErr := cmd.Process.Signal(syscall.SIGTERM)
	if err := cmd.Wait(); err != nil || readErr != nil || stopErr != nil {
		t.Errorf("it ended with %v after %q (%v, %v):\n%s", err, line, readErr, stopErr, said.Bytes())
	}
}

func (i *image) inspect(t *testing.T, pid int, line []byte, purpose string) {
	t.Helper()
	var ready struct{ Addresses map[string]string }
	if err := json.Unmarshal(line, &ready); err != nil || ready.Addresses[purpose] == "" {
		t.Errorf("ready line %s: %v", line, err)
	}
	status := procFile(t, pid, "status")
	for _, want := range []string{"\nCapEff:\t0000000000000000\n", "\nCapPrm:\t0000000000000000\n", "\nNoNewPrivs:\t1\n"} {
		if !strings.Contains(status, want) {
			t.Errorf("it runs without %q:\n%s", want, status)
		}
	}
	mounts := procFile(t, pid, "mountinfo")
	if strings.Count(mounts, "\n") != 1+len(i.Mounts) || !strings.Contains(mounts, " / ro,") {
		t.Errorf("its root is not read-only, or it sees more:\n%s", mounts)
	}
	if ports := listeners(t, pid); !slices.Equal(ports, i.exposed) {
		t.Errorf("it serves others on ports %v, and EXPOSE says %v", ports, i.exposed)
	}
}

func procFile(t *testing.T, pid int, name string) string {
	t.Helper()
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/%s", pid, name))
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// listeners returns the TCP ports that are listened on in a process' network, beyond loopback. A port from the range of free
// ones is one that cannot be named beforehand.
func listeners(t *testing.T, pid int) (ports []string) {
	t.Helper()
	const listening, firstFree = "0A", 32768
	for line := range strings.Lines(procFile(t, pid, "net/tcp") + procFile(t, pid, "net/tcp6")) {
		fields := strings.Fields(line)
		if len(fields) < 4 || fields[3] != listening {
			continue
		}
		address, hex, _ := strings.Cut(fields[1], ":")
		port, err := strconv.ParseUint(hex, 16, 16)
		if err != nil {
			t.Fatal(err)
		}
		if strings.Trim(address, "0") == "" && port < firstFree {
			ports = append(ports, strconv.FormatUint(port, 10))
		}
	}
	slices.Sort(ports)
	return ports
}

// containerVariable tells the test binary to become the program of an image.
const containerVariable = "TANDEM_TEST_IMAGE"

const (
	capNetAdmin        = 12
	capSysAdmin        = 21
	prSetNoNewPrivs    = 38
	prCapAmbient       = 47
	prCapAmbientClear  = 4
	mountsReadOnly     = syscall.MS_BIND | syscall.MS_REMOUNT | syscall.MS_RDONLY | syscall.MS_NOSUID | syscall.MS_NODEV
	interfaceFlags     = 0x8914 // SIOCSIFFLAGS
	interfaceRequest   = 40     // bytes of struct ifreq
	interfaceNameBytes = 16
)

// enter makes an image the root of this process, and becomes its program. It returns only what went wrong.
func enter(text string) error {
	var i image
	if err := json.Unmarshal([]byte(text), &i); err != nil {
		return err
	}
	// Threads have capabilities of their own: what follows happens on the one that becomes the program.
	runtime.LockOSThread()
	for _, step := range []struct {
		what string
		do   func() error
	}{
		{"keeping mounts", func() error { return syscall.Mount("", "/", "", syscall.MS_REC|syscall.MS_PRIVATE, "") }},
		{"mounting the root", func() error { return syscall.Mount(i.Root, i.Root, "", syscall.MS_BIND, "") }},
		{"mounting volumes", i.mountVolumes},
		{"making the root read-only", func() error { return syscall.Mount("", i.Root, "", mountsReadOnly, "") }},
		{"entering the root", func() error { return os.Chdir(i.Root) }},
		{"changing the root", func() error { return syscall.PivotRoot(".", ".") }},
		{"leaving the old root", func() error { return syscall.Unmount(".", syscall.MNT_DETACH) }},
		{"starting loopback", loopbackUp},
		{"clearing capabilities", func() error { return prctl(prCapAmbient, prCapAmbientClear) }},
		{"refusing new privileges", func() error { return prctl(prSetNoNewPrivs, 1) }},
	} {
		if err := step.do(); err != nil {
			return fmt.Errorf("%s: %w", step.what, err)
		}
	}
	return syscall.Exec(i.Entry, append([]string{i.Entry}, os.Args[1:]...), append([]string{"PATH=/"}, i.Env...))
}

func (i *image) mountVolumes() error {
	for at, dir := range i.Mounts {
		if err := syscall.Mount(dir, filepath.Join(i.Root, at), "", syscall.MS_BIND|syscall.MS_REC, ""); err != nil {
			return err
		}
	}
	return nil
}

func prctl(option, argument uintptr) error {
	if _, _, e := syscall.RawSyscall6(syscall.SYS_PRCTL, option, argument, 0, 0, 0, 0); e != 0 {
		return e
	}
	return nil
}

// loopbackUp starts the loopback interface of a network that is new.
func loopbackUp() error {
	s, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_DGRAM, 0)
	if err != nil {
		return err
	}
	defer syscall.Close(s)
	var request [interfaceRequest]byte
	copy(request[:], "lo")
	*(*uint16)(unsafe.Pointer(&request[interfaceNameBytes])) = syscall.IFF_UP
	if _, _, e := syscall.Syscall(syscall.SYS_IOCTL, uintptr(s), interfaceFlags, uintptr(unsafe.Pointer(&request))); e != 0 {
		return e
	}
	return nil
}
