package kubelet

import (
	"fmt"
	"net"
	"net/http"
	"os"
	"os/signal"
	"strconv"
	"sync"
	"syscall"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/tandem-serving/tandem/e2e/kube/container"
)

const (
	// programVariable makes the test binary the program that tests run in containers.
	programVariable = "TANDEM_KUBELET_TEST_PROGRAM"
	// imageName is that of the image that has it, and the machine's own programs.
	imageName = "test/program:v1"
	// rootName is the same image, whose user is root.
	rootName = "test/root:v1"
)

// runProgram serves until it is told to end: at /check/NAME what /set/NAME/STATUS has said, at first 200, and a gRPC health
// service on the next port, which is well as long as /check/grpc is.
func runProgram() int {
	port, _ := strconv.Atoi(os.Getenv(programVariable))
	health := health.NewServer()
	var mu sync.Mutex
	codes := map[string]int{}
	mux := http.NewServeMux()
	mux.HandleFunc("/check/{name}", func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		w.WriteHeader(max(codes[r.PathValue("name")], http.StatusOK))
	})
	mux.HandleFunc("/set/{name}/{code}", func(_ http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		code, _ := strconv.Atoi(r.PathValue("code"))
		codes[r.PathValue("name")] = code
		status := healthpb.HealthCheckResponse_SERVING
		if codes["grpc"] > http.StatusOK {
			status = healthpb.HealthCheckResponse_NOT_SERVING
		}
		health.SetServingStatus("", status)
	})
	l, err := net.Listen("tcp", fmt.Sprintf(":%d", port+1))
	if err != nil {
		fmt.Println(err)
		return 1
	}
	s := grpc.NewServer()
	healthpb.RegisterHealthServer(s, health)
	go func() { _ = s.Serve(l) }()
	go func() { _ = http.ListenAndServe(fmt.Sprintf(":%d", port), mux) }()
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGTERM)
	fmt.Println("serving")
	<-signals
	fmt.Println("told to end")
	return 0
}

// testImages have the test binary and the programs of this machine.
func testImages(t *testing.T) container.Images {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	image := container.Image{Files: map[string]string{"/program": self}, Entrypoint: []string{"/program"}, UID: 65532, GID: 65532,
		Env: []string{"FROM_IMAGE=image", "OVERRIDDEN=image"}}
	for _, dir := range []string{"/bin", "/usr", "/lib", "/lib64"} {
		if _, err := os.Stat(dir); err == nil {
			image.Shared = append(image.Shared, dir)
		}
	}
	root := image
	root.UID, root.GID = 0, 0
	return container.Images{"test/program": image, "test/root": root}
}
