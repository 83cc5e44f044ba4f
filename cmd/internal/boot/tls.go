package boot

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"log/slog"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"
)

// selfSignedFor is long because a process does not renew it; nobody can verify
// it anyway.
const selfSignedFor = 10 * 365 * 24 * time.Hour

// ServerTLS makes the TLS setup of a server, TLS 1.2 or newer. dir holds
// tls.crt and tls.key, as a mounted Kubernetes secret does; an empty dir means a
// self-signed certificate made now. Of a clientCA that is not empty, a file of
// certificates, every client must show one that is signed by it. The next
// handshake takes files that have changed, and broken ones keep the last good
// ones in use. The error is an [Exit] with CodeConfig.
func ServerTLS(dir, clientCA string, log *slog.Logger) (*tls.Config, error) {
	config := &tls.Config{MinVersion: tls.VersionTLS12}
	if dir == "" {
		cert, err := selfSigned(time.Now())
		if err != nil {
			return nil, Configf("making a certificate: %w", err)
		}
		config.Certificates = []tls.Certificate{cert}
	} else {
		pair, err := followPair(dir, log)
		if err != nil {
			return nil, Configf("reading the certificate: %w", err)
		}
		config.GetCertificate = func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return pair.Get(), nil }
	}
	if clientCA == "" {
		return config, nil
	}
	signers, err := followCA(clientCA, log)
	if err != nil {
		return nil, Configf("reading the certificates that clients' must be signed by: %w", err)
	}
	config.ClientAuth, config.ClientCAs = tls.RequireAndVerifyClientCert, signers.Get()
	config.SessionTicketsDisabled = true // who was let in before may be no longer
	config.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) {
		now := config.Clone()
		now.ClientCAs = signers.Get()
		return now, nil
	}
	return config, nil
}

// PeerTLS says how those who are called are verified, and what they are shown.
type PeerTLS struct {
	CAFile   string // certificates that theirs must be signed by; "": the system's
	CertDir  string // holds tls.crt and tls.key, for those who ask; "": nothing is shown
	Name     string // DNS name that theirs must be for; "": the host that is called
	Insecure bool   // theirs are not verified
}

// ClientTLS gives the TLS setup of connections to others, TLS 1.2 or newer, with
// what the files hold when it is called: call it for each connection. It must
// not be changed. The error is an [Exit] with CodeConfig.
func ClientTLS(p PeerTLS, log *slog.Logger) (func() *tls.Config, error) {
	base := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: p.Name,
		InsecureSkipVerify: p.Insecure} //nolint:gosec // the operator's choice, by a flag that says so
	if p.CertDir != "" {
		pair, err := followPair(p.CertDir, log)
		if err != nil {
			return nil, Configf("reading the client certificate: %w", err)
		}
		base.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return pair.Get(), nil }
	}
	if p.CAFile == "" {
		return func() *tls.Config { return base }, nil
	}
	signers, err := followCA(p.CAFile, log)
	if err != nil {
		return nil, Configf("reading the certificates that peers' must be signed by: %w", err)
	}
	return func() *tls.Config {
		now := base.Clone()
		now.RootCAs = signers.Get()
		return now
	}, nil
}

// followPair is the certificate and key of a directory.
func followPair(dir string, log *slog.Logger) (*Followed[*tls.Certificate], error) {
	certPath, keyPath := filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key")
	return Follow(log, "certificate", func() (*tls.Certificate, error) {
		pair, err := tls.LoadX509KeyPair(certPath, keyPath)
		if err != nil {
			return nil, fmt.Errorf("%s and %s: %w", certPath, keyPath, err)
		}
		return &pair, nil
	}, certPath, keyPath)
}

// followCA is a file of certificates that others are signed by.
func followCA(file string, log *slog.Logger) (*Followed[*x509.CertPool], error) {
	return FollowFile(log, "certificates of authorities", file, func(text []byte) (*x509.CertPool, error) {
		pool := x509.NewCertPool()
		if !pool.AppendCertsFromPEM(text) {
			return nil, errors.New("it holds no certificate in PEM")
		}
		return pool, nil
	})
}

// selfSigned makes a certificate for this host. ECDSA P-256 takes well under a
// millisecond, where RSA can hold up the start of a small pod for seconds.
func selfSigned(now time.Time) (tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, err
	}
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return tls.Certificate{}, err
	}
	names := []string{"localhost"}
	if host, err := os.Hostname(); err == nil {
		names = append(names, host)
	}
	template := &x509.Certificate{
		SerialNumber: serial,
		Subject:      pkix.Name{CommonName: "tandem self-signed"},
		NotBefore:    now.Add(-time.Hour), // clocks of clients may be behind
		NotAfter:     now.Add(selfSignedFor),
		KeyUsage:     x509.KeyUsageDigitalSignature,
		ExtKeyUsage:  []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		DNSNames:     names,
		IPAddresses:  []net.IP{net.IPv4(127, 0, 0, 1), net.IPv6loopback},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		return tls.Certificate{}, err
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, nil
}
