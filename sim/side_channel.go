package sim

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"strconv"
	"time"

	"github.com/tandem-serving/tandem/pd/dialect"
	"github.com/tandem-serving/tandem/sim/transport"
	"github.com/tandem-serving/tandem/transfer"
	"github.com/tandem-serving/tandem/transfer/zmtp"
)

// AskSideChannel returns the metadata of the transport of the engine whose side channel is at address (host:port).
func AskSideChannel(ctx context.Context, address string) (metadata []byte, err error) {
	answer, err := zmtp.Ask(ctx, new(net.Dialer), address, dialect.AskSideChannel(0, 0), dialect.MaxSideChannel)
	if err != nil {
		return nil, err
	}
	told, err := dialect.ParseSideChannel(answer)
	return told.Agent, err
}

// openTransport opens the side channel and the transport, and notes the address that hand-offs name.
func (c *connector) openTransport() (err error) {
	address := c.cfg.Transfer.SideChannel
	if c.cfg.Transfer.Fetch == nil {
		c.cfg.Transfer.Fetch, c.cfg.Transfer.ServeSideChannel = AskSideChannel, true
	}
	if c.cfg.Transfer.ServeSideChannel {
		if c.sideChannel, err = net.Listen("tcp", address); err != nil {
			return fmt.Errorf("opening the side channel: %w", err)
		}
		address = c.sideChannel.Addr().String()
	}
	host, port, err := net.SplitHostPort(address)
	if err == nil {
		c.identity.host = host
		c.identity.port, err = strconv.Atoi(port)
	}
	if err != nil {
		return errors.Join(fmt.Errorf("reading the address of the side channel, %q: %w", address, err), c.closeTransport())
	}
	if c.moriio != nil {
		if err := c.moriio.listen(); err != nil {
			return errors.Join(err, c.closeTransport())
		}
		if c.transport == nil {
			c.identity.engineID = address
		}
	}
	if c.transport != nil {
		return nil
	}
	open := c.cfg.Transfer.Open
	if open == nil {
		open = c.openTCP
	}
	t, err := open(c.identity.engineID)
	if err != nil {
		return errors.Join(fmt.Errorf("opening the transfer transport: %w", err), c.closeTransport())
	}
	c.transport = t
	return nil
}

func (c *connector) openTCP(name string) (transfer.Transport, error) {
	return transport.NewTCP(transport.TCPConfig{Listen: net.JoinHostPort(c.identity.host, "0"), Name: name,
		StallTimeout: NoStallTimeout, Logger: c.log})
}

// closeTransport closes the side channel and the transport, and then frees the memory of the KV.
func (c *connector) closeTransport() error {
	var errs [5]error
	errs[4] = c.fetched.close()
	if c.moriio != nil && c.moriio.listener != nil {
		if err := c.moriio.listener.Close(); !errors.Is(err, net.ErrClosed) {
			errs[3] = err
		}
	}
	if c.sideChannel != nil {
		if err := c.sideChannel.Close(); !errors.Is(err, net.ErrClosed) {
			errs[0] = err
		}
	}
	if c.transport != nil {
		errs[1] = c.transport.Close()
	}
	if c.kv != nil && errs[1] == nil {
		errs[2] = c.kv.Free()
	}
	return errors.Join(errs[:]...)
}

// serveSideChannel answers questions for this engine's metadata until ctx ends.
func (c *connector) serveSideChannel(ctx context.Context) {
	// The real engine has a digest of everything that engines of a pair have to agree on. No peer compares this one.
	sum := sha256.Sum256(fmt.Appendf(nil, "%s/%d", c.cfg.Model.Name, c.cfg.KV.BlockSize))
	compatibility := hex.EncodeToString(sum[:])
	err := zmtp.Serve(ctx, c.sideChannel, func(question []byte) [][]byte {
		if pipeline, tensor, ok := dialect.ReadQuestion(question); !ok || pipeline != 0 || tensor != 0 {
			return nil // this engine has one rank
		}
		told := dialect.SideChannel{EngineID: c.identity.engineID, Agent: c.transport.Metadata()}
		return told.Pack(compatibility, float64(time.Now().UnixMicro())/1e6)
	})
	if err != nil {
		c.log.Error("serving the side channel", "error", err)
	}
}

// SideChannelAddress returns the host:port that hand-offs name.
func (e *Engine) SideChannelAddress() string {
	return net.JoinHostPort(e.connector.identity.host, strconv.Itoa(e.connector.identity.port))
}
