package stack_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"go.uber.org/goleak"

	testprograms "github.com/tandem-serving/tandem/e2e/programs"
	"github.com/tandem-serving/tandem/stack"
)

// playVariable names the program below that the test binary runs.
const playVariable = "STACK_TEST_PLAY"

func TestMain(m *testing.M) {
	if program, ok := programs[os.Getenv(playVariable)]; ok {
		os.Exit(program())
	}
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) {
		os.RemoveAll(builtDir)
		os.Exit(code)
	}))
}

// builtDir is the folder that buildPrograms has made; "" if no test needed it.
var builtDir string

// buildPrograms builds the programs of a P/D stack, once, and returns their folder.
var buildPrograms = sync.OnceValues(func() (dir string, err error) {
	builtDir, err = testprograms.Build(testprograms.All()...)
	return builtDir, err
})

// buildNIXL builds the programs that speak NIXL into their folder, once.
var buildNIXL = sync.OnceValues(func() (dir string, err error) {
	if dir, err = buildPrograms(); err != nil {
		return "", err
	}
	build := exec.Command("go", "build", "-tags=nixl", "-o", stack.NIXLDir(dir)+string(filepath.Separator), "./cmd/keeper", "./cmd/sim")
	build.Dir = ".."
	build.Env = append(os.Environ(), "CGO_ENABLED=1")
	if out, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("building the programs that speak NIXL: %w\n%s", err, out)
	}
	return dir, nil
})

// programs end with the code that they return.
var programs = map[string]func() int{
	"echo":     echo,
	"early":    early,
	"silent":   silent,
	"stubborn": stubborn,
	"sulky":    sulky,
	"chatty":   chatty,
	"environ":  environ,
	"parent":   parent,
}

// played returns a program that the test binary runs.
func played(t *testing.T, name string) stack.Program {
	t.Helper()
	path, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	// Otherwise a program with the race detector takes a second to end.
	return stack.Program{Name: name, Path: path, Env: []string{playVariable + "=" + name, "GORACE=atexit_sleep_ms=0"}}
}

func ready(addresses string) {
	fmt.Printf("{\"ready\":\"test\",\"addresses\":{%s}}\n", addresses)
}

// waitForSignal blocks until SIGTERM or SIGUSR1, and reports whether it was SIGUSR1.
func waitForSignal(signals <-chan os.Signal) (died bool) { return <-signals == syscall.SIGUSR1 }

func catchSignals() <-chan os.Signal {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGUSR1)
	return signals
}

// echo returns every line that arrives on its port, or at the address in its argument, ends with 0 on SIGTERM, and with 7 on SIGUSR1.
func echo() int {
	signals := catchSignals()
	address := "127.0.0.1:0"
	if len(os.Args) > 1 {
		address = os.Args[1]
	}
	l, err := net.Listen("tcp", address)
	if err != nil {
		return 1
	}
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go io.Copy(c, c)
		}
	}()
	fmt.Println("about to be ready")
	ready(`"echo":"` + l.Addr().String() + `"`)
	if waitForSignal(signals) {
		fmt.Fprintln(os.Stderr, "dying of SIGUSR1")
		return 7
	}
	return 0
}

func early() int {
	fmt.Fprintln(os.Stderr, "config is wrong")
	return 3
}

func silent() int {
	signals := catchSignals()
	fmt.Println("not a ready line")
	waitForSignal(signals)
	return 0
}

func stubborn() int {
	signal.Ignore(syscall.SIGTERM)
	// While the program listens for a signal, the Go runtime does not report a deadlock.
	never := make(chan os.Signal, 1)
	signal.Notify(never, syscall.SIGUSR1)
	ready("")
	<-never
	return 0
}

func sulky() int {
	signals := catchSignals()
	ready("")
	waitForSignal(signals)
	fmt.Fprint(os.Stderr, "could not drain") // without the end of the line
	return 1
}

// chatty writes more than is stored, on two outputs, and then dies.
func chatty() int {
	ready("")
	for i := range 100 {
		fmt.Printf("line %d\n", i)
	}
	ready(`"second":"time"`)
	fmt.Println(strings.Repeat("x", 100_000))
	return 0
}

func environ() int {
	signals := catchSignals()
	ready("")
	for _, v := range os.Environ() {
		fmt.Println(v)
	}
	fmt.Println("end of environment")
	waitForSignal(signals)
	return 0
}

// parent starts an echo program and waits until it is killed.
func parent() int {
	path, err := os.Executable()
	if err != nil {
		return 1
	}
	child, err := stack.Start(context.Background(), stack.Program{Name: "child", Path: path, Env: []string{playVariable + "=echo"}})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	address, err := child.Address("echo")
	if err != nil {
		return 1
	}
	ready(`"echo":"` + address + `"`)
	select {}
}

func start(t *testing.T, p stack.Program) *stack.Process {
	t.Helper()
	process, err := stack.Start(t.Context(), p)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { process.Stop() })
	return process
}

// dial connects to an echo program.
func dial(t *testing.T, p *stack.Process) net.Conn {
	t.Helper()
	address, err := p.Address("echo")
	if err != nil {
		t.Fatal(err)
	}
	c, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

func exchange(t *testing.T, c net.Conn) {
	t.Helper()
	if _, err := fmt.Fprintln(c, "hello"); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(c).ReadString('\n')
	if line != "hello\n" || err != nil {
		t.Fatalf("echo: %q, %v", line, err)
	}
}

// contains checks that an error has texts.
func contains(t *testing.T, err error, parts ...string) {
	t.Helper()
	if err == nil {
		t.Fatal("no error")
	}
	for _, part := range parts {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("error does not say %q: %v", part, err)
		}
	}
}
