package container

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// brokenStatus is the exit status of a process that could not take its role.
const brokenStatus = 125

// Enter runs the test binary once more, in network, mount and PID namespaces of its own, with the same arguments, streams
// and working directory, and exits as that exits. It returns in there, where tests and containers run; and where the machine
// grants no such namespaces, in which case [Require] skips. TestMain calls it before anything else: the processes that
// containers start from are the test binary too, and for them it does not return.
//
// There, /run is empty, names of ip netns are private, and loopback and the bridge are up.
func Enter() {
	role := os.Getenv(roleVariable)
	_ = os.Unsetenv(roleVariable) // fails for no name that is one
	switch role {
	case roleInit:
		beInit()
	case roleStart:
		become(startRoot)
	case roleExec:
		become(joinRoot)
	case roleNode:
		outside = ""
	default:
		outside = enter()
	}
}

// enter exits as the test binary in the namespaces does. It returns only if the namespaces could not be made, and says why.
func enter() string {
	if os.Geteuid() != 0 {
		return "they are root's to make (run the tests as root)"
	}
	cmd, err := again(roleInit)
	if err != nil {
		return err.Error()
	}
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	// The signal comes when the thread dies that is the parent, so this one stays.
	runtime.LockOSThread()
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNET | unix.CLONE_NEWNS | unix.CLONE_NEWPID,
		Pdeathsig: syscall.SIGKILL}
	signals := newRelay()
	defer signals.stop()
	answer, err := startAnswering(cmd)
	if err != nil {
		return fmt.Sprintf("making them: %v (run the tests as root of the machine, not of a container)", err)
	}
	signals.pass(cmd.Process)
	why, err := io.ReadAll(answer)
	if err != nil {
		why = []byte(err.Error())
	}
	_ = answer.Close()
	waitErr := cmd.Wait()
	if len(why) > 0 {
		return "setting them up: " + strings.TrimSpace(string(why))
	}
	os.Exit(exitStatus(cmd.ProcessState, waitErr))
	return ""
}

// again returns the test binary in another role.
func again(role string) (*exec.Cmd, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("finding the test binary: %w", err)
	}
	cmd := exec.Command(self, os.Args[1:]...)
	cmd.Env = append(os.Environ(), roleVariable+"="+role)
	return cmd, nil
}

// startAnswering starts a process that reports a failure over its first extra file.
func startAnswering(cmd *exec.Cmd) (*os.File, error) {
	read, write, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	cmd.ExtraFiles = append([]*os.File{write}, cmd.ExtraFiles...)
	err = cmd.Start()
	_ = write.Close()
	if err != nil {
		_ = read.Close()
		return nil, err
	}
	return read, nil
}

// relay holds the signals that end a test binary, until there is a process to pass them on to.
type relay struct{ signals chan os.Signal }

func newRelay() relay {
	r := relay{make(chan os.Signal, 8)}
	signal.Notify(r.signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGQUIT)
	return r
}

// pass passes them on, until the end.
func (r relay) pass(to *os.Process) {
	go func() {
		for s := range r.signals {
			_ = to.Signal(s) // it may have ended
		}
	}()
}

func (r relay) stop() {
	signal.Stop(r.signals)
	close(r.signals)
}

// exitStatus returns the status of a process in the form of shells.
func exitStatus(state *os.ProcessState, err error) int {
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		fmt.Fprintln(os.Stderr, "waiting for the tests:", err)
		return brokenStatus
	}
	code, _ := statusOf(state.Sys().(syscall.WaitStatus))
	return code
}

// statusOf returns the exit code, which is 128 plus the signal if a signal ended the process.
func statusOf(status syscall.WaitStatus) (code int, sig syscall.Signal) {
	if status.Signaled() {
		return 128 + int(status.Signal()), status.Signal()
	}
	return status.ExitStatus(), 0
}

// beInit sets up the namespaces, starts the tests in them, and reaps until those have ended, and this process with them.
func beInit() {
	unix.CloseOnExec(answerFile)
	answer := os.NewFile(answerFile, "answer")
	signals := newRelay()
	cmd, err := again(roleNode)
	if err == nil {
		err = setUpNode()
	}
	if err == nil {
		cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
		err = cmd.Start()
	}
	if err != nil {
		_, _ = fmt.Fprint(answer, err) // only the parent listens
		os.Exit(brokenStatus)
	}
	_ = answer.Close()
	signals.pass(cmd.Process)
	if err := reap(cmd.Process.Pid); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(brokenStatus)
	}
}

// reap waits for every child, its own or inherited, and exits as one of them does.
func reap(pid int) error {
	for {
		var status syscall.WaitStatus
		ended, err := syscall.Wait4(-1, &status, 0, nil)
		switch {
		case errors.Is(err, syscall.EINTR):
		case err != nil:
			return fmt.Errorf("waiting for the tests: %w", err)
		case ended == pid:
			code, _ := statusOf(status)
			os.Exit(code)
		}
	}
}

// setUpNode sets up the namespaces as doc.go says. First it separates the mounts from the machine's.
func setUpNode() error {
	const flags = unix.MS_NOSUID | unix.MS_NODEV
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("keeping mounts private: %w", err)
	}
	if err := unix.Mount("proc", "/proc", "proc", flags|unix.MS_NOEXEC, ""); err != nil {
		return fmt.Errorf("mounting /proc: %w", err)
	}
	if err := unix.Mount("tmpfs", "/run", "tmpfs", flags, "mode=755"); err != nil {
		return fmt.Errorf("mounting /run: %w", err)
	}
	return setUpBridge()
}
