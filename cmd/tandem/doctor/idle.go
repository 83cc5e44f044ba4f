package doctor

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"time"
)

// idle asks one question on a connection of its own, and sees whether it is closed within a time. The error says why that
// cannot be seen.
func idle(ctx context.Context, t *target, wait time.Duration) (lasted time.Duration, closed bool, err error) {
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", t.addr.String())
	if err != nil {
		return 0, false, cause(err)
	}
	defer conn.Close()
	if t.scheme == "https" {
		conn = tls.Client(conn, &tls.Config{MinVersion: tls.VersionTLS12, InsecureSkipVerify: true}) //nolint:gosec // only its idle time is wanted
	}
	defer context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })()
	if _, err := fmt.Fprintf(conn, "GET /health HTTP/1.1\r\nHost: %s\r\n\r\n", t.addr); err != nil {
		return 0, false, cause(err)
	}
	in := bufio.NewReader(conn)
	resp, err := http.ReadResponse(in, nil)
	if err != nil {
		return 0, false, cause(err)
	}
	if _, err := io.Copy(io.Discard, resp.Body); err != nil {
		return 0, false, cause(err)
	}
	if err := resp.Body.Close(); err != nil {
		return 0, false, cause(err)
	}
	if resp.Close {
		return 0, true, nil // it keeps no connection at all
	}
	began := time.Now()
	if err := conn.SetReadDeadline(began.Add(wait)); err != nil {
		return 0, false, err
	}
	_, err = in.ReadByte()
	if errors.Is(err, os.ErrDeadlineExceeded) {
		if ctx.Err() != nil {
			return 0, false, errors.New("it took too long to answer")
		}
		return wait, false, nil
	}
	return time.Since(began), true, nil
}
