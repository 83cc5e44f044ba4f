package up

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"strings"
	"text/tabwriter"

	"github.com/tandem-serving/tandem/stack"
)

// describe tells a person what runs and what to do with it.
func (s *settings) describe(w io.Writer, pd *stack.PD) error {
	url, err := clientURL(pd.Proxy)
	if err != nil {
		return err
	}
	call, err := curl(url, pd.Model)
	if err != nil {
		return err
	}
	kind := "simulated"
	if len(s.Engines.Decode) > 0 {
		kind = "yours"
	}
	_, err = fmt.Fprintf(w, `
Tandem is up at %s (%s) with %d prefill and %d decode engines (%s) that serve %s.

  %s

With -i, the answer says what became of the request (x-tandem-pd-decision) and where its time went (Server-Timing).
%s
%s
For one request, -H 'x-tandem-pd: force' has it prefilled remotely, and -H 'x-tandem-pd: bypass' where it is decoded.
Where a request would go, and why: tandem explain --admin %s FILE, with its body in FILE.

%s
Ctrl-C ends all of it.
`, url, pd.ProxyName, len(pd.Prefill), len(pd.Decode), kind, pd.Model, call, s.rule(), s.hold(), pd.EPP.Admin, table(pd.Ports()))
	return err
}

// rule says in words when prompts are prefilled remotely.
func (s *settings) rule() string {
	switch {
	case s.Stack.Config != "":
		return "Where prompts are prefilled is up to " + s.Stack.Config + "."
	case s.Stack.Threshold == 0:
		return "Prompts are prefilled where they are decoded (--threshold 0)."
	}
	return fmt.Sprintf("Prompts are prefilled remotely from %d tokens on that the decode engine has not cached (--threshold); the picker\n"+
		"takes four bytes of text for a token.", s.Stack.Threshold)
}

// hold says in words what becomes of hand-offs that nobody comes for.
func (s *settings) hold() string {
	if !s.keeps() {
		return "Sidecars leave it to the decode engines to give hand-offs back (--transport nixl has them do it themselves)."
	}
	over := map[string]string{stack.TransportTCP: "Tandem's own TCP", stack.TransportNIXL: "NIXL"}
	return "Sidecars hold hand-offs, and give them back, by telling the prefill engines over " + over[s.Stack.Transport] + " (--transport)."
}

// clientURL is the URL at which a client on this machine finds what listens at address.
func clientURL(address string) (string, error) {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return "", err
	}
	if net.ParseIP(host).IsUnspecified() {
		host = "localhost"
	}
	return "http://" + net.JoinHostPort(host, port), nil
}

// curl is a command to paste into a shell.
func curl(url, model string) (string, error) {
	name, err := json.Marshal(model)
	if err != nil {
		return "", err
	}
	body := fmt.Sprintf(`{"model": %s, "max_tokens": 16, "messages": [{"role": "user", "content": "Hello"}]}`, name)
	return fmt.Sprintf("curl -i %s/v1/chat/completions -H 'Content-Type: application/json' \\\n    -d '%s'",
		url, strings.ReplaceAll(body, "'", `'\''`)), nil
}

// table aligns the ports.
func table(ports []stack.PortLine) string {
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	name := ""
	for _, p := range ports {
		shown := p.Name
		if shown == name {
			shown = "" // several ports of one program
		}
		name = p.Name
		fmt.Fprintf(w, "  %s\t%s\t%s\n", shown, p.Address, p.What)
	}
	w.Flush() // a strings.Builder takes everything
	return b.String()
}
