package container

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// The files that the first process and shims start with, besides their streams.
const (
	answerFile    = 3 // to say what went wrong
	launchFile    = 4 // to read what to run
	containerFile = 5 // a process of the container, for roleExec
)

// become makes this process the program that it is told, in a root that a function enters. It does not return: what goes
// wrong is its answer.
func become(enter func(launch) error) {
	unix.CloseOnExec(answerFile)
	answer := os.NewFile(answerFile, "answer")
	// Threads have namespaces and capabilities of their own: what follows happens on the one that becomes the program.
	runtime.LockOSThread()
	err := enterAndRun(enter)
	f := failure{Text: err.Error()}
	errors.As(err, &f.Errno)
	_ = json.NewEncoder(answer).Encode(f) // only the parent listens
	syscall.Exit(brokenStatus)            // without a word of what watches tests, which would be in the container's log
}

func enterAndRun(enter func(launch) error) error {
	var l launch
	told := os.NewFile(launchFile, "launch")
	if err := json.NewDecoder(told).Decode(&l); err != nil {
		return fmt.Errorf("reading what to run: %w", err)
	}
	if err := told.Close(); err != nil {
		return err
	}
	if err := enter(l); err != nil {
		return err
	}
	dir := filepath.Join("/", l.Spec.Dir)
	if err := os.Chdir(dir); err != nil {
		return fmt.Errorf("entering the working directory: %w", err)
	}
	if err := dropRights(l.Spec); err != nil {
		return fmt.Errorf("giving up rights: %w", err)
	}
	program, err := find(l.Spec.Args[0], l.Spec.Env)
	if err != nil {
		return err
	}
	err = syscall.Exec(program, l.Spec.Args, l.Spec.Env)
	if _, statErr := os.Stat(program); statErr == nil && errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("running %s: %w (it is there, but not the loader or interpreter that it names)", program, err)
	}
	return fmt.Errorf("running %s: %w", program, err)
}

// joinRoot enters the namespaces of a container, but for the PID namespace, in which the shim was started.
func joinRoot(launch) error {
	// A thread that shares its root with others cannot enter a mount namespace.
	if err := unix.Unshare(unix.CLONE_FS); err != nil {
		return fmt.Errorf("keeping the root for this thread: %w", err)
	}
	const kinds = unix.CLONE_NEWNS | unix.CLONE_NEWNET | unix.CLONE_NEWIPC | unix.CLONE_NEWUTS
	if err := unix.Setns(containerFile, kinds); err != nil {
		return fmt.Errorf("entering the container: %w", err)
	}
	return unix.Close(containerFile)
}

// dropRights makes this thread one of the container's user, without capabilities, and without a way to get some.
func dropRights(s Spec) error {
	for c := uintptr(0); ; c++ {
		if err := unix.Prctl(unix.PR_CAPBSET_DROP, c, 0, 0, 0); errors.Is(err, unix.EINVAL) {
			break // behind the last one that this Linux knows
		} else if err != nil {
			return err
		}
	}
	if err := unix.Prctl(unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0); err != nil {
		return err
	}
	if err := syscall.Setgroups(append([]int{s.GID}, s.Groups...)); err != nil {
		return err
	}
	if err := syscall.Setgid(s.GID); err != nil {
		return err
	}
	if err := syscall.Setuid(s.UID); err != nil {
		return err
	}
	none := [2]unix.CapUserData{}
	if err := unix.Capset(&unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}, &none[0]); err != nil {
		return err
	}
	unix.Umask(0o022)
	return unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
}

// defaultPath is where programs are looked for without a PATH.
const defaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// find returns the path of a program, which is looked for as a shell does.
func find(program string, env []string) (string, error) {
	if strings.Contains(program, "/") {
		return program, nil
	}
	path := defaultPath
	for _, e := range env {
		if value, ok := strings.CutPrefix(e, "PATH="); ok {
			path = value
		}
	}
	for _, dir := range filepath.SplitList(path) {
		file := filepath.Join(dir, program)
		if info, err := os.Stat(file); err == nil && info.Mode().IsRegular() && info.Mode().Perm()&0o111 != 0 {
			return file, nil
		}
	}
	return "", fmt.Errorf("finding %s in %s: %w", program, path, unix.ENOENT)
}
