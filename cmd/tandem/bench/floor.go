package bench

import (
	"context"
	"errors"
	"net/http"
	"net/http/httputil"
	"net/url"

	"google.golang.org/grpc"

	"github.com/tandem-serving/tandem/cmd/internal/boot"
	procclient "github.com/tandem-serving/tandem/epp/extproc/client"
)

// serveFloor is a program of its own, which bench runs beside the programs under test: the least that could stand in their
// place. target is what it passes requests on to, host:port.
func serveFloor(ctx context.Context, std boot.IO, floor, target string) error {
	l, err := boot.Listen(ctx, "floor", "127.0.0.1:0")
	if err != nil {
		return err
	}
	if err := boot.Ready(std.Stdout, "floor", boot.Addresses{floor: l.Addr()}); err != nil {
		return errors.Join(err, l.Close())
	}
	if floor == floorPicker {
		server := grpc.NewServer()
		(&procclient.Floor{Endpoints: target}).Register(server)
		stop := context.AfterFunc(ctx, server.Stop)
		defer stop()
		return server.Serve(l)
	}
	proxy := httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: target})
	proxy.Transport = &http.Transport{MaxIdleConnsPerHost: maxLanes}
	// Else the server closes the request's body when the answer begins, under the hands of the transport, which may not have
	// seen the end of it yet, and then cuts the answer.
	duplex := func(w http.ResponseWriter, r *http.Request) {
		_ = http.NewResponseController(w).EnableFullDuplex() // it is HTTP/1
		proxy.ServeHTTP(w, r)
	}
	server := &http.Server{Handler: http.HandlerFunc(duplex)}
	stop := context.AfterFunc(ctx, func() { _ = server.Close() })
	defer stop()
	if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}
