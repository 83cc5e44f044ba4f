package container

import (
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

const (
	// programVariable makes the test binary one of the programs that tests run in containers.
	programVariable = "TANDEM_CONTAINER_TEST_PROGRAM"
	// enteredVariable makes it one after Enter.
	enteredVariable = "TANDEM_CONTAINER_TEST_ENTERED"
)

// patience is how long a test waits for what takes milliseconds.
const patience = time.Minute

// runProgram runs what the test binary stands for, with the arguments behind its name, and gives its exit code.
func runProgram(name string) int {
	err := error(nil)
	switch name {
	case "listen":
		err = listenAndGreet(os.Args[1], os.Args[2]+"\n")
	case "flood":
		n, _ := strconv.Atoi(os.Args[2])
		err = listenAndGreet(os.Args[1], strings.Repeat("x", n))
	case "echo":
		err = echo(os.Args[1])
	case "hear":
		err = hear(os.Args[1])
	case "tell":
		err = tell(os.Args[1], os.Args[2])
	case "dial":
		err = dial(os.Args[1], patience)
	case "dial briefly":
		err = dial(os.Args[1], 2*time.Second)
	case "family":
		err = family()
	case "exit":
		return 7
	case "die":
		err = syscall.Kill(os.Getpid(), syscall.SIGKILL)
	case "terminate":
		signals := make(chan os.Signal, 1)
		signal.Notify(signals, syscall.SIGTERM)
		fmt.Println("ready")
		<-signals
		return 3
	default:
		err = fmt.Errorf("there is no program %q", name)
	}
	if err != nil {
		fmt.Println(err)
		return 1
	}
	return 0
}

// listenAndGreet greets every client until it is killed.
func listenAndGreet(address, greeting string) error {
	l, err := net.Listen("tcp", address)
	if err != nil {
		return err
	}
	fmt.Println("ready")
	for {
		c, err := l.Accept()
		if err != nil {
			return err
		}
		if _, err := io.WriteString(c, greeting); err != nil {
			fmt.Println(err)
		}
		if err := c.Close(); err != nil {
			fmt.Println(err)
		}
	}
}

// echo sends back what the first who dials sends.
func echo(address string) error {
	l, err := net.Listen("tcp", address)
	if err != nil {
		return err
	}
	fmt.Println("ready")
	c, err := l.Accept()
	if err != nil {
		return err
	}
	_, err = io.Copy(c, c)
	return err
}

// hear prints the first datagram that arrives.
func hear(address string) error {
	l, err := net.ListenPacket("udp", address)
	if err != nil {
		return err
	}
	fmt.Println("ready")
	b := make([]byte, 100)
	n, _, err := l.ReadFrom(b)
	fmt.Printf("%s\n", b[:n])
	return err
}

// tell sends a datagram.
func tell(address, text string) error {
	c, err := net.Dial("udp", address)
	if err != nil {
		return err
	}
	_, err = io.WriteString(c, text)
	return err
}

// dial prints what a listener greets with.
func dial(address string, wait time.Duration) error {
	c, err := net.DialTimeout("tcp", address, wait)
	if err != nil {
		return err
	}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(patience)); err != nil {
		return err
	}
	_, err = io.Copy(os.Stdout, c)
	return err
}

// family starts a child in a session of its own, and says so when both run.
func family() error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	child := exec.Command(self)
	child.Env = append(os.Environ(), programVariable+"=terminate")
	child.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	child.Stdout = os.Stdout // which says ready
	if err := child.Run(); err != nil {
		return fmt.Errorf("the child: %w", err)
	}
	return nil
}

// testImage has the test binary, and the programs of this machine.
func testImage(t *testing.T) Image {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	image := Image{Files: map[string]string{"/program": self}, Shared: libraries()}
	for _, dir := range []string{"/bin", "/usr/bin"} {
		if _, err := os.Stat(dir); err == nil {
			image.Shared = append(image.Shared, dir)
		}
	}
	return image
}
