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

// describe prints what runs and how to use it.
func (s *settings) describe(w io.Writer, pd *stack.PD, logs string) error {
	url, err := clientURL(pd.Proxy)
	if err != nil {
		return err
	}
	call, err := curl(url, pd.Model, s.Engines.KeyFile)
	if err != nil {
		return err
	}
	kind := "simulated"
	if s.Engines.any() {
		kind = "yours"
	}
	_, err = fmt.Fprintf(w, `
Tandem is up at %s (%s) with %s (%s) that serve %s.

  %s

With -i, the answer has the decision for the request (x-tandem-pd-decision) and its phases (Server-Timing).
%s
To see where a request would go, and why: tandem explain --admin %s FILE, with its body in FILE.
To look for what does not fit together: tandem doctor --up FILE%s, with the line that is on stdout in FILE.
To see what happened to a request: tandem why --up FILE ID, with its x-request-id.

%s
A program that ends by itself, Envoy excepted, is started again at the same addresses.
The output of all programs is in %s, one file each.
Ctrl-C ends everything.
`, url, pd.ProxyName, engines(pd), kind, pd.Model, call, s.prefill(pd), pd.EPP.Admin, s.keyFlag(), table(pd.Ports()), logs)
	return err
}

// engines counts the engines of each role.
func engines(pd *stack.PD) string {
	if len(pd.Plain) == 0 {
		return fmt.Sprintf("%d prefill and %d decode engines", len(pd.Prefill), len(pd.Decode))
	}
	return fmt.Sprintf("%d prefill, %d decode and %d plain engines", len(pd.Prefill), len(pd.Decode), len(pd.Plain))
}

// prefill describes where prompts are prefilled, and what becomes of hand-offs.
func (s *settings) prefill(pd *stack.PD) string {
	if len(pd.Prefill) == 0 {
		return "There is no prefill engine: every prompt is prefilled by its decode engine, and -H 'x-tandem-pd: force' is refused with 503."
	}
	if len(pd.Plain) > 0 {
		return s.rule() + "\n" +
			"SGLang's decode engines compute no prompts: requests that stay local go to plain engines, those with -H 'x-tandem-pd: bypass' too.\n" +
			"Prefill and decode engine get a request at once. If one of them fails, the sidecar has both end it."
	}
	if s.Stack.Engine == stack.EngineSGLang {
		return "SGLang's decode engines compute no prompts: every prompt is prefilled remotely, and -H 'x-tandem-pd: bypass' is refused with 503.\n" +
			"Both engines get a request at once. If one of them fails, the sidecar has both end it."
	}
	return s.rule() + "\n" + s.hold() + "\n" +
		"For one request, -H 'x-tandem-pd: force' makes prefill remote, and -H 'x-tandem-pd: bypass' makes it local."
}

// keyFlag is the flag by which other commands get the engines' API key; "" if they need none.
func (s *settings) keyFlag() string {
	if s.Engines.KeyFile == "" {
		return ""
	}
	return " --api-key-file " + quoted(s.Engines.KeyFile)
}

// quoted quotes a word for a shell.
func quoted(word string) string { return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'" }

// rule describes when prompts are prefilled remotely.
func (s *settings) rule() string {
	switch {
	case s.Stack.Config != "":
		return "Where prompts are prefilled is decided by " + s.Stack.Config + "."
	case s.Stack.Threshold == 0:
		return "Prompts are prefilled by their decode engine (--threshold 0)."
	}
	return fmt.Sprintf("Prompts with %d or more tokens not cached on the decode engine are prefilled remotely (--threshold); the picker\n"+
		"counts four bytes of text as a token.", s.Stack.Threshold)
}

// hold describes who releases hand-offs that no decode engine will pull.
func (s *settings) hold() string {
	if s.Stack.Engine == stack.EngineTRTLLM {
		return "Context engines keep what no generation engine reads for kv_transfer_timeout_ms (a minute)."
	}
	if !s.keeps() {
		return "Decode engines release unused hand-offs (with --transport nixl, sidecars do it themselves)."
	}
	over := map[string]string{stack.TransportTCP: "Tandem's own TCP", stack.TransportNIXL: "NIXL"}
	return "Sidecars renew and release hand-offs by notifying the prefill engines over " + over[s.Stack.Transport] + " (--transport)."
}

// clientURL returns the URL at which a client on this machine reaches the listener at address.
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

// curl returns a command to paste into a shell. It sends the key in keyFile, if one is named.
func curl(url, model, keyFile string) (string, error) {
	name, err := json.Marshal(model)
	if err != nil {
		return "", err
	}
	body := fmt.Sprintf(`{"model": %s, "max_tokens": 16, "messages": [{"role": "user", "content": "Hello"}]}`, name)
	key := ""
	if keyFile != "" {
		key = fmt.Sprintf(` -H "Authorization: Bearer $(cat %s)"`, quoted(keyFile))
	}
	return fmt.Sprintf("curl -i %s/v1/chat/completions -H 'Content-Type: application/json'%s \\\n    -d %s", url, key, quoted(body)), nil
}

// table aligns the ports.
func table(ports []stack.PortLine) string {
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	name := ""
	for _, p := range ports {
		shown := p.Name
		if shown == name {
			shown = "" // further ports of the same program
		}
		name = p.Name
		fmt.Fprintf(w, "  %s\t%s\t%s\n", shown, p.Address, p.What)
	}
	w.Flush() // writing to a strings.Builder never fails
	return b.String()
}
