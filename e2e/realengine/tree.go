package realengine

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

const (
	// signalTimeout bounds the wait until a signal has reached all threads.
	signalTimeout = 30 * time.Second
	// lookInterval is the time between two checks of the threads: Linux has no event for their states.
	lookInterval = 2 * time.Millisecond
)

// An engine's processes are one process group, made by package stack: the main process accepts requests, and starts others,
// which schedule and compute.

// Pause stops all its processes (SIGSTOP), as on a node that hangs, and returns when none of them runs.
func (e *Engine) Pause() error {
	if err := e.signal(syscall.SIGSTOP); err != nil {
		return err
	}
	return e.await("stop", stopped)
}

// Resume continues a paused engine.
func (e *Engine) Resume() error { return e.signal(syscall.SIGCONT) }

// Kill ends all its processes at once (SIGKILL), like a node that fails, and returns when none is left. It does nothing for
// an engine that has ended.
func (e *Engine) Kill() error {
	if err := e.signal(syscall.SIGKILL); err != nil {
		return err
	}
	if err := e.current().Kill(); err != nil {
		return err
	}
	return e.await("end", ended)
}

// Stop ends it as an operator does (SIGTERM), and kills what is left. It may be called again. The error says that something
// had to be killed.
func (e *Engine) Stop() error {
	err := e.signal(syscall.SIGCONT)
	return errors.Join(err, e.current().Stop(), e.Kill())
}

// signal sends a signal to all its processes, if there are any.
func (e *Engine) signal(s syscall.Signal) error {
	if err := syscall.Kill(-e.current().PID(), s); err != nil && !errors.Is(err, syscall.ESRCH) {
		return fmt.Errorf("sending %v to %s: %w", s, e.command.Name, err)
	}
	return nil
}

// await polls the threads of all processes until each is in one of the given states.
func (e *Engine) await(what, states string) error {
	ctx, cancel := context.WithTimeout(context.Background(), signalTimeout)
	defer cancel()
	again := time.NewTicker(lookInterval)
	defer again.Stop()
	for !all(e.current().PID(), states) {
		select {
		case <-again.C:
		case <-ctx.Done():
			return fmt.Errorf("waiting for %s to %s: something of it still runs after %v", e.command.Name, what, signalTimeout)
		}
	}
	return nil
}

// States of a thread in /proc. A thread that has ended may stay until its parent waits for it.
const (
	ended   = "ZX"
	stopped = "Tt" + ended
)

// all reports whether every thread of a process group is in one of the given states.
func all(group int, states string) bool {
	stats, err := filepath.Glob("/proc/[0-9]*/task/[0-9]*/stat")
	if err != nil {
		return false
	}
	for _, stat := range stats {
		b, err := os.ReadFile(stat)
		if err != nil {
			continue // it has ended
		}
		// pid (name) state parent group …, and the name may have any characters.
		fields := strings.Fields(string(b[strings.LastIndexByte(string(b), ')')+1:]))
		if len(fields) > 2 && fields[2] == strconv.Itoa(group) && !strings.Contains(states, fields[0]) {
			return false
		}
	}
	return true
}
