package stack

// PortLine describes one port of a stack.
type PortLine struct {
	Name    string // of the program that listens: envoy, gateway, epp, prefill-0, …
	Address string // host:port
	What    string // what it is for
}

// Ports returns the ports of the stack that are useful to a person, those for clients first.
func (p *PD) Ports() []PortLine {
	lines := []PortLine{{p.proxyProgram(), p.Proxy, "clients connect here: the OpenAI API over HTTP/1.1 and HTTP/2 without TLS"}}
	if p.ProxyAdmin != "" {
		lines = append(lines, PortLine{p.proxyProgram(), p.ProxyAdmin, "Envoy's own pages"})
	}
	lines = append(lines,
		PortLine{"epp", p.EPP.Admin, "/debug, POST /explain, profiles"},
		PortLine{"epp", p.EPP.Metrics, "/metrics, /readyz, /livez"},
		PortLine{"epp", p.EPP.ExtProc, "gRPC: the proxy asks here where to send a request"},
		PortLine{"epp", p.EPP.Health, "gRPC: health"})
	for _, pod := range p.Prefill {
		lines = append(lines, pod.engineLines()...)
	}
	for _, pod := range p.generating() {
		sidecar := pod.sidecar()
		lines = append(lines, PortLine{sidecar, pod.Address, "the proxy sends requests here"},
			PortLine{sidecar, pod.SidecarMetrics, "/metrics, /readyz, /livez"},
			PortLine{sidecar, pod.SidecarAdmin, "/debug/requests, profiles"})
		lines = append(lines, pod.engineLines()...)
	}
	return lines
}

func (p *PD) proxyProgram() string {
	if p.ProxyAdmin != "" {
		return "envoy"
	}
	return "gateway"
}

// sidecar returns the name of the sidecar's program.
func (pod *Pod) sidecar() string { return pod.Name + " sidecar" }

func (pod *Pod) engineLines() []PortLine {
	if pod.EngineAdmin == "" {
		return []PortLine{{pod.Name, pod.Engine, "the engine"}}
	}
	return []PortLine{
		{pod.Name, pod.Engine, "the engine, simulated: its API and /metrics"},
		{pod.Name, pod.EngineAdmin, "its /sim/state and /sim/faults"},
	}
}
