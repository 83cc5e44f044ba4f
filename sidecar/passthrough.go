package sidecar

import (
	"context"
	"io"
	"log/slog"
	"mime"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strings"

	"github.com/tandem-serving/tandem/pd"
	"github.com/tandem-serving/tandem/sidecar/transport"
)

// newPassthrough makes the proxy for everything that is no generate call. It changes nothing but the headers that only
// Tandem's parts may set.
func (s *Server) newPassthrough() *httputil.ReverseProxy {
	to, err := url.Parse(s.engine)
	if err != nil {
		panic(err) // host and port were checked
	}
	return &httputil.ReverseProxy{
		Transport: s.local,
		ErrorLog:  slog.NewLogLogger(s.log.Handler(), slog.LevelDebug),
		Rewrite: func(p *httputil.ProxyRequest) {
			p.Out.URL.Scheme, p.Out.URL.Host = to.Scheme, to.Host
			p.Out.Host = p.In.Host
			p.Out.URL.RawQuery = p.In.URL.RawQuery  // what net/url cannot parse, an engine may
			for _, name := range forwardedHeaders { // the proxy before us has written them
				if values, ok := p.In.Header[name]; ok {
					p.Out.Header[name] = values
				}
			}
			for name := range p.Out.Header {
				if pd.Internal(name) {
					p.Out.Header.Del(name)
				}
			}
			p.Out.Trailer = nil
			if !strings.EqualFold(p.Out.Header.Get("Upgrade"), "websocket") { // in another protocol anything could be said
				p.Out.Header.Del("Connection")
				p.Out.Header.Del("Upgrade")
			}
		},
		ModifyResponse: func(resp *http.Response) error {
			transport.RemoveReserved(resp.Header)
			if resp.StatusCode != http.StatusSwitchingProtocols {
				transport.RemoveReserved(resp.Trailer)
				resp.Body = &trailed{resp.Body, resp}
			}
			return nil
		},
		ErrorHandler: func(w http.ResponseWriter, r *http.Request, err error) {
			refusal := refusalOf(err, s.cfg.Trust.BodyLimit)
			if g, ok := r.Context().Value(guardKey{}).(*guarded); ok && refusal == nil {
				refusal = refusalOf(g.failure(), s.cfg.Trust.BodyLimit)
			}
			if p, ok := r.Context().Value(pacedKey{}).(*paced); ok && refusal == nil && p.late() {
				refusal = slowBody()
			}
			if refusal == nil {
				refusal = engineGone(err)
			}
			s.refusePass(w, r, refusal)
		},
	}
}

// trailed is an answer's body that removes reserved trailers at its end.
type trailed struct {
	io.ReadCloser
	resp *http.Response
}

// Read implements io.Reader.
func (t *trailed) Read(b []byte) (int, error) {
	n, err := t.ReadCloser.Read(b)
	if err == io.EOF {
		transport.RemoveReserved(t.resp.Trailer)
	}
	return n, err
}

// forwardedHeaders are dropped by httputil.ReverseProxy unless they are put back.
var forwardedHeaders = [...]string{"Forwarded", "X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto"}

// guardKey finds the guard of a passed-through body in the request's context, where the error handler looks.
type guardKey struct{}

// pacedKey finds the body itself.
type pacedKey struct{}

// pass serves what is no generate call. Engines have more doors to generation than the APIs known here (and will have
// others), so every body that an engine could read as JSON is cleaned.
func (s *Server) pass(w http.ResponseWriter, r *http.Request) {
	if r.Body != nil && r.Body != http.NoBody {
		p := new(paced)
		p.begin(r.Context(), w, r, s.cfg.Trust.BodyPause)
		defer p.end()
		r = r.WithContext(context.WithValue(r.Context(), pacedKey{}, p))
		g, err := s.guardOf(r)
		if err != nil {
			s.refusePass(w, r, err)
			return
		}
		if g != nil {
			defer g.free()
			r = r.WithContext(context.WithValue(r.Context(), guardKey{}, g))
			r.Body = g.once()
		}
	}
	s.passthrough.ServeHTTP(w, r)
}

// guardOf wraps a body by what an engine may take it for, nil for one that is sure to be no JSON. A form's text must be
// UTF-8: in any other encoding an engine could read what is not seen here.
func (s *Server) guardOf(r *http.Request) (*guarded, *pd.Refusal) {
	kinds := r.Header["Content-Type"]
	if len(kinds) != 1 { // which of several counts is the engine's choice
		return s.guard(r.Body), packed(r.Header)
	}
	media, params, err := mime.ParseMediaType(kinds[0])
	if err != nil {
		return s.guard(r.Body), packed(r.Header)
	}
	major, _, _ := strings.Cut(media, "/")
	switch {
	case major == "multipart":
		if c := strings.ToLower(params["charset"]); c != "" && c != "utf-8" && c != "us-ascii" {
			return nil, pd.Refuse(pd.BadRequest, "Forms must be encoded as UTF-8, not %q.", c)
		}
		return s.guardForm(r.Body), packed(r.Header)
	case major == "audio", major == "image", major == "video", media == "application/octet-stream":
		return nil, nil
	}
	return s.guard(r.Body), packed(r.Header)
}

// packed refuses a compressed body: an engine that unpacks it would read what nobody has looked at.
func packed(h http.Header) *pd.Refusal {
	for _, coding := range h["Content-Encoding"] {
		if coding != "" && !strings.EqualFold(coding, "identity") {
			return pd.Refuse(pd.BadRequest, "The request body is compressed (%q). It must be sent as it is.", coding)
		}
	}
	return nil
}

func (s *Server) refusePass(w http.ResponseWriter, r *http.Request, refusal *pd.Refusal) {
	if err := refusal.Write(w, pd.APIOf(r.URL.Path), refusal.Result(), true); err != nil {
		s.log.Debug("answering a request", "error", err)
	}
}
