package stack

import (
	"bytes"
	"context"

	"github.com/tandem-serving/tandem/epp/extproc/envoyconf"
	"github.com/tandem-serving/tandem/stack/envoy"
)

func (a *assembly) startProxy(ctx context.Context) error {
	if a.Proxy == ProxyEnvoy {
		return a.startEnvoy(ctx)
	}
	a.pd.ProxyName = "embedded gateway"
	return a.start(ctx, Gateway(a.Dir, "--listen="+a.Listen, "--epp="+a.pd.EPP.ExtProc, "--epp-plaintext"),
		map[string]*string{"http": &a.pd.Proxy})
}

// startEnvoy starts an Envoy with the bootstrap of tandem envoy-config.
func (a *assembly) startEnvoy(ctx context.Context) error {
	o := envoyconf.Defaults()
	o.Listen, o.Admin, o.Pickers, o.Collector = a.Listen, "127.0.0.1:0", []string{a.pd.EPP.ExtProc}, a.OTLP
	o.PickerTLS.Plaintext = true
	var bootstrap bytes.Buffer
	if err := envoyconf.Bootstrap(&bootstrap, o); err != nil {
		return err
	}
	log, err := a.log(ProxyEnvoy)
	if err != nil {
		return err
	}
	e, err := envoy.Log{Level: a.LogLevel, Also: log}.Start(ctx, bootstrap.Bytes())
	if err != nil {
		return err
	}
	if err := a.group.Add(e); err != nil {
		return err
	}
	version, err := e.Version(ctx)
	if err != nil {
		return err
	}
	a.pd.ProxyName, a.pd.ProxyAdmin = "Envoy "+version, e.Admin()
	a.pd.Proxy, err = e.Listener(ctx, envoyconf.ListenerName)
	return err
}
