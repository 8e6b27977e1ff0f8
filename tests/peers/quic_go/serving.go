package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"math/big"
	"net"
	"time"

	"github.com/quic-go/quic-go"
)

// The control of benchmarks: a server that parses and answers, and stores nothing. What a stream begins with
// says what it is: the line "sink" (the rest is dropped), CONNECT WRITER of Fujin, else an echo.
func serve(address, application string) error {
	certificate, err := selfSigned()
	if err != nil {
		return err
	}
	config := &tls.Config{Certificates: []tls.Certificate{certificate}, NextProtos: []string{application}}
	// The windows of the other servers.
	terms := &quic.Config{
		InitialStreamReceiveWindow:     1 << 20,
		MaxStreamReceiveWindow:         1 << 20,
		InitialConnectionReceiveWindow: 4 << 20,
		MaxConnectionReceiveWindow:     4 << 20,
	}
	listener, err := quic.ListenAddr(address, config, terms)
	if err != nil {
		return err
	}
	fmt.Println(listener.Addr())
	for {
		connection, err := listener.Accept(contextOfRun)
		if err != nil {
			return err
		}
		go func() {
			for {
				stream, err := connection.AcceptStream(contextOfRun)
				if err != nil {
					return
				}
				go answer(stream)
			}
		}()
	}
}

func answer(stream *quic.Stream) error {
	first := make([]byte, chunk)
	size, err := stream.Read(first)
	if err != nil && err != io.EOF {
		return err
	}
	data := first[:size]
	switch {
	case string(data) == "sink\n":
		if _, err := stream.Write(data); err != nil {
			return err
		}
		if _, err := io.Copy(io.Discard, stream); err != nil {
			return err
		}
	case size >= connectBytes && data[0] == connectWriter:
		return answerWrites(stream, data[connectBytes:])
	default:
		if _, err := stream.Write(data); err != nil {
			return err
		}
		if _, err := io.Copy(stream, stream); err != nil {
			return err
		}
	}
	return stream.Close()
}

func selfSigned() (tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, err
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1),
		NotAfter:     time.Now().Add(24 * time.Hour),
		DNSNames:     []string{"localhost"},
		IPAddresses:  []net.IP{net.IPv4(127, 0, 0, 1)},
	}
	made, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		return tls.Certificate{}, err
	}
	return tls.Certificate{Certificate: [][]byte{made}, PrivateKey: key}, nil
}
